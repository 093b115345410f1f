"""The frames of a clip and its styles: the last rounds of a reply, each as its tree before and after the verdict."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from specchat.engine.protocol.events import RoundDone
from specchat.engine.protocol.text import visible
from specchat.tui.text.cells import ScreenLine, cut, last_wrapped_lines, padded, width_of, wrap
from specchat.tui.text.theme import DARK
from specchat.tui.tree import UNICODE, draw, hides_most, picture_of
from specchat.tui.tree.panel_lines import title_of

_QUIET, _LINES = DARK.variables["quiet-color"], DARK.variables["line-color"]
COLOURS = {
    "root": _QUIET, "accepted": DARK.primary, "bonus": DARK.accent, "rejected": _QUIET, "crossed": _QUIET,
    "unreached": _QUIET, "pending": _QUIET, "pruned": _QUIET, "cut": DARK.primary, "agreed": DARK.secondary,
    "river": DARK.primary, "line": _LINES, "dim": _QUIET, "drafted": DARK.primary, "target": DARK.accent,
}  # fmt: skip
"""The colour of each role; of the others, the text's own."""

BOLD, ITALIC, STRUCK = ("accepted", "bonus"), ("pending", "unreached"), ("rejected", "pruned", "cut")


ROUNDS = 12
"""The most rounds of a clip."""

COLUMNS, TREE_LINES, TEXT_LINES = 100, 16, 3

PENDING_S, STEP_S, VERDICT_S = 0.4, 0.2, 0.6
"""How long a round is shown before its verdict, while it is told, and after it."""


@dataclass(frozen=True)
class Frame:
    """What is on the screen for some seconds."""

    lines: list[ScreenLine]
    seconds: float


def frames_of(rounds: Sequence[RoundDone], about: Sequence[str]) -> list[Frame]:
    """The frames of the last reply's last rounds.

    Args:
        rounds: in order; those of earlier replies are left out.
        about: lines that say how the reply was made, which stand below every frame.
    """
    reply = [round for round in rounds if round.id == rounds[-1].id]
    shown = reply[-ROUNDS:]
    height = max(len(_drawn(round, None)) for round in shown)
    frames: list[Frame] = []
    for at, round in enumerate(reply):
        if at >= len(reply) - len(shown):
            frames += _round_frames(round, _text(reply[:at]), height, about)
    return frames


def _round_frames(round: RoundDone, before: ScreenLine, height: int, about: Sequence[str]) -> Iterator[Frame]:
    depths = len(round.verdict.path)
    yield Frame(_lines(round, 0, before, height, about), PENDING_S)
    if depths >= 2:
        yield Frame(_lines(round, (depths + 1) // 2, before, height, about), STEP_S)
    yield Frame(_lines(round, None, [*before, *_text([round])], height, about), VERDICT_S)


def _lines(round: RoundDone, upto: int | None, text: ScreenLine, height: int, about: Sequence[str]) -> list[ScreenLine]:
    tree = _drawn(round, upto)
    end = last_wrapped_lines(text, COLUMNS, TEXT_LINES)
    return [
        _title(round, told=upto is None),
        [],
        *tree,
        *([] for _ in range(height - len(tree) + 1)),
        *end,
        *([] for _ in range(TEXT_LINES - len(end) + 1)),
        *([(line[begin:stop].strip(), "dim")] for line in about for begin, stop in wrap(line, COLUMNS)),
    ]


def _title(round: RoundDone, *, told: bool) -> ScreenLine:
    left: ScreenLine = [("specchat", "accepted"), ("  ", ""), (title_of(round, told=told), "text")]
    name = cut(f"round {round.index + 1}", COLUMNS)
    return [*padded(left, COLUMNS - width_of([(name, "")])), (name, "dim")]


def _drawn(round: RoundDone, upto: int | None) -> list[ScreenLine]:
    picture = picture_of(round, UNICODE, upto)
    large = hides_most(picture, COLUMNS, TREE_LINES, "river", UNICODE)
    return draw(picture, COLUMNS, TREE_LINES, "map" if large else "river", UNICODE).lines


def _text(rounds: Sequence[RoundDone]) -> ScreenLine:
    return [(visible(piece.text), piece.origin) for round in rounds for piece in round.pieces]
