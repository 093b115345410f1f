"""The line that tells of loading: in a narrow window parts are left out, the least important first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from specchat.engine.protocol.events import Loading
from specchat.engine.protocol.stage_text import loading_wordings
from specchat.tui.text import numbers
from specchat.tui.text.cells import ScreenLine, bar, clip, cut, width_of

_NAME_CELLS = 18
"""A file's name is cut down to so many cells, what is done with it included, before figures are left out."""

_SHORTEST_BAR, _LONGER_BARS = 5, (10, 15, 20)
_LEFT_CELLS = 10
"""The time that is left takes no less, so that parts do not come and go with its digits."""


def loading_line(event: Loading, width: int, cancels: str) -> ScreenLine:
    """`fetching model.safetensors  ━━━━╸     62 % 143 MB of 230 MB · 12 MB/s · 7 s left    Esc cancels`.

    Args:
        cancels: the key that does, and what it does; empty where there is none.
    """
    parts: dict[str, str] = {}
    for part, text in _by_importance(event, cancels):
        more = {**parts, part: text}
        if parts and width_of(_line(more, 0)) > width:
            break
        parts = more
    return clip(_line(parts, width), width)


def _by_importance(event: Loading, cancels: str) -> Iterator[tuple[str, str]]:
    """The parts of the line with their texts, the most important first; later texts of a part are longer."""
    _, share, figures = numbers.loading(event)
    shortest, *longer, whole = loading_wordings(event)
    yield "what", shortest
    if share is not None:
        yield "share", f"{share:4.0%}".replace("%", " %")
    yield "left", figures.left and figures.left.ljust(_LEFT_CELLS)
    yield "cancels", cancels
    for text in longer or [cut(whole, _NAME_CELLS)]:
        yield "what", text
    if share is not None:
        yield "bar", bar(share, _SHORTEST_BAR)
    yield "done", figures.done
    yield "rate", figures.rate
    yield "what", whole
    if share is not None:
        for cells in _LONGER_BARS:
            yield "bar", bar(share, cells)


def _line(parts: Mapping[str, str], width: int) -> ScreenLine:
    """The parts in their order; the key that cancels is at the right end of so many cells."""
    figures = " · ".join(text for part in ("done", "rate", "left") if (text := parts.get(part)))
    shown = ((parts.get("bar"), "bar"), (parts.get("share"), "text"), (figures, "dim"))
    line: ScreenLine = [(parts["what"], "text"), (" ", "")]
    for text, role in shown:
        if text:
            line += [(" ", ""), (text, role)]
    if cancels := parts.get("cancels"):
        line += [(" " * max(2, width - width_of(line) - len(cancels)), ""), (cancels, "dim")]
    return line
