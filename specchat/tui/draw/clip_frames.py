"""The frames of a clip: the last rounds of a reply, each as its tree before and after the verdict, the text below."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from specchat.engine.protocol.events import RoundDone
from specchat.engine.protocol.text import visible
from specchat.tui.draw.reply_end import last_rows
from specchat.tui.draw.token_tree import UNICODE, draw, hides_most, picture_of
from specchat.tui.draw.tree_captions import title_of
from specchat.tui.text.cells import Row, cut, padded, width_of
from specchat.tui.text.wrap import wrap

ROUNDS = 12
"""The most rounds of a clip."""

COLUMNS, TREE_ROWS, TEXT_ROWS = 100, 16, 3

PENDING_S, STEP_S, VERDICT_S = 0.4, 0.2, 0.6
"""How long a round is shown before its verdict, while it is told, and after it."""


@dataclass(frozen=True)
class Frame:
    """What is on the screen for some seconds."""

    rows: list[Row]
    seconds: float


def frames_of(rounds: Sequence[RoundDone], about: Sequence[str]) -> list[Frame]:
    """The frames of the last reply's last rounds.

    Args:
        rounds: in order; those of earlier replies are left out.
        about: lines that say how the reply was made, which stand below every frame.
    """
    reply = [round for round in rounds if round.id == rounds[-1].id]
    shown = reply[-ROUNDS:]
    height = max(_tree_height(round) for round in shown)
    frames: list[Frame] = []
    for at, round in enumerate(reply):
        if at >= len(reply) - len(shown):
            frames += _round_frames(round, _text(reply[:at]), height, about)
    return frames


def _round_frames(round: RoundDone, before: Row, height: int, about: Sequence[str]) -> Iterator[Frame]:
    depths = len(round.verdict.path)
    yield Frame(_rows(round, 0, before, height, about), PENDING_S)
    if depths >= 2:
        yield Frame(_rows(round, (depths + 1) // 2, before, height, about), STEP_S)
    yield Frame(_rows(round, None, [*before, *_text([round])], height, about), VERDICT_S)


def _rows(round: RoundDone, upto: int | None, text: Row, height: int, about: Sequence[str]) -> list[Row]:
    tree = _drawn(round, upto)
    end = last_rows(text, COLUMNS, TEXT_ROWS)
    return [
        _title(round, told=upto is None),
        [],
        *tree,
        *([] for _ in range(height - len(tree) + 1)),
        *end,
        *([] for _ in range(TEXT_ROWS - len(end) + 1)),
        *([(line[begin:stop].strip(), "dim")] for line in about for begin, stop in wrap(line, COLUMNS)),
    ]


def _title(round: RoundDone, *, told: bool) -> Row:
    left: Row = [("specchat", "accepted"), ("  ", ""), (title_of(round, told=told), "text")]
    name = cut(f"round {round.index + 1}", COLUMNS)
    return [*padded(left, COLUMNS - width_of([(name, "")])), (name, "dim")]


def _drawn(round: RoundDone, upto: int | None) -> list[Row]:
    picture = picture_of(round, UNICODE, upto)
    large = hides_most(picture, COLUMNS, TREE_ROWS, "river", UNICODE)
    return draw(picture, COLUMNS, TREE_ROWS, "map" if large else "river", UNICODE).rows


def _tree_height(round: RoundDone) -> int:
    return len(_drawn(round, None))


def _text(rounds: Sequence[RoundDone]) -> Row:
    return [(visible(piece.text), piece.origin) for round in rounds for piece in round.pieces]
