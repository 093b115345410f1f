"""A short benchmark as lines: its progress, and its figures by category."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from specchat.engine.client.race_result import Kind, settings_line
from specchat.engine.protocol.text import visible
from specchat.tui.draw.race_lines import MARKS, NAMES
from specchat.tui.state.race_series import ALL, CategoryFigures, RaceSeries
from specchat.tui.text import numbers
from specchat.tui.text.cells import ScreenLine, bar, clip, cut, wrap

_CAVEAT = "few and short replies; `specchat bench` measures more, with intervals"
_HEADS = ("plain tok/s", "tok/s", "× plain", "τ", "same text")
_WIDE = (13, 9, 9, 7, 11)
_NARROW = (8, 7, 6)
_LABEL = 12


def progress_lines(
    series: RaceSeries, pair: str, dtype: str, settings: Mapping[str, Any], width: int
) -> list[ScreenLine]:
    """What is compared, and the progress."""
    compared = settings_line(settings, series.seed, dtype)
    lead = f"{len(series.finished_races)} of {len(series.questions)} questions"
    if series.seconds is not None:
        lead = f"{len(series.finished_races)} questions, for {numbers.seconds(series.seconds)}"
    room = max(4, width - len(lead) - 2)
    lines: list[ScreenLine] = [
        [(cut(f"{visible(pair)} · {compared}", width), "dim")],
        [(bar(series.progress, room), "bar"), ("  ", ""), (lead, "text")],
    ]
    return [*lines, _state_line(series, width)]


def table_lines(series: RaceSeries, width: int) -> list[ScreenLine]:
    """One line for every category, and one for all."""
    groups = series.groups()
    if not groups:
        return [[("the first two replies are being written", "dim")]]
    narrow = width < _LABEL + sum(_WIDE)
    heads = ("plain", "tok/s", "×") if narrow else _HEADS
    lines = [_line("", heads, "dim", narrow)]
    for group in groups:
        cells = _cells(group)
        chosen = cells[:3] if narrow else cells
        lines.append(_line(group.category, chosen, "strong" if group.category == ALL else "text", narrow))
    return [clip(line, width) for line in lines]


def outcome_lines(series: RaceSeries, width: int) -> list[ScreenLine]:
    """The outcome, once the benchmark has ended."""
    if series.problem:
        return _wrapped("✕ ", visible(series.problem), "bad", width)
    groups = series.groups()
    if not series.ended or not groups:
        return [[("stopped before anything was measured", "dim")]] if series.stopped else []
    kind, line = _proof(groups[-1])
    mark, role = MARKS[kind]
    return _wrapped(mark, line, role, width)


def series_text(series: RaceSeries, pair: str, dtype: str, settings: Mapping[str, Any]) -> str:
    """The whole result as lines to copy."""
    screen_lines = [*table_lines(series, 80), *outcome_lines(series, 1000)]
    lines = ["".join(text for text, _ in screen_line).rstrip() for screen_line in screen_lines]
    return "\n".join([f"{pair} · {settings_line(settings, series.seed, dtype)}", *lines])


def _state_line(series: RaceSeries, width: int) -> ScreenLine:
    if series.stopped:
        return [("■ ", "dim"), ("stopped; this is what was measured", "text")]
    if series.ended:
        return clip([("★ ", "bonus"), (_CAVEAT, "dim")], width)
    race = series.race
    doing = (
        f"{NAMES[race.running]} writes" if race.running else "warming up" if race.phase == "warming" else "comparing"
    )
    asked = " ".join(series.question.prompt.split())
    return clip([("● ", "accepted"), (f"{doing} · ", "text"), (asked, "dim")], width)


def _cells(group: CategoryFigures) -> Sequence[str]:
    return (
        numbers.rate(group.plain_tokens_per_s),
        numbers.rate(group.tokens_per_s),
        f"{group.ratio:.2f}",
        f"{group.acceptance_length:.2f}",
        f"{group.same} of {group.races}",
    )


def _line(label: str, cells: Sequence[str], role: str, narrow: bool) -> ScreenLine:
    widths = _NARROW if narrow else _WIDE
    text = "".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True))
    return [(cut(visible(label), _LABEL - 1).ljust(_LABEL), role), (text, role)]


def _proof(everything: CategoryFigures) -> tuple[Kind, str]:
    """Whether the texts agree, in one sentence."""
    same = f"{everything.same} of {everything.races} replies are plain decoding's, token by token"
    if everything.same == everything.races:
        return "same", same
    if not everything.promised:
        return "law", f"{same}; this rule promises the same distribution, not the same text"
    if everything.sound:
        left = everything.races - everything.same
        return "tie", f"{same}; {left} left at a near-tie"
    return "fault", f"{same}, and the others leave it where no rounding explains it; please report this"


def _wrapped(mark: str, text: str, role: str, width: int) -> list[ScreenLine]:
    pieces = [text[start:end].rstrip() for start, end in wrap(text, max(8, width - 2))]
    return [[(mark if not place else "  ", role), (piece, "text")] for place, piece in enumerate(pieces)]
