"""Formats numbers with their units, and the line that tells of loading."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from specchat.engine.protocol.events import Loading
from specchat.engine.protocol.stage_text import loading_text, loading_wordings, seconds_left
from specchat.tui.text.cells import ScreenLine, bar, clip, cut, width_of


def count(value: float) -> str:
    """Whole numbers with thousands apart: `1,204`."""
    return f"{round(value):,}"


def guesses(count: int) -> str:
    """Draft tokens in words: `1 guess`, `14 guesses`."""
    return "1 guess" if count == 1 else f"{count:,} guesses"


def tokens(count: int) -> str:
    """`1 token`, `1,204 tokens`."""
    return "1 token" if count == 1 else f"{count:,} tokens"


def size(value: float) -> str:
    """Bytes, in steps of a thousand: `1.9 GB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if value < 999.5:
            return f"{value:.0f} {unit}" if unit == "B" or value >= 99.5 else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


def parameters(count: int) -> str:
    """Weights of a model as its name would say them: `135M`, `1.5B`, `24B`."""
    millions = count / 1e6
    return f"{millions:.0f}M" if millions < 950 else f"{millions / 1000:.{0 if millions >= 9950 else 1}f}B"


def percent(share: float) -> str:
    """`42 %`."""
    return f"{share:.0%}".replace("%", " %")


def seconds(value: float) -> str:
    """A time to wait: `7 s`, `2 min 05 s`."""
    whole = round(value)
    return f"{whole} s" if whole < 60 else f"{whole // 60} min {whole % 60:02d} s"


def milliseconds(value_s: float) -> str:
    """A time per round: `1.9 ms`."""
    value = value_s * 1000
    return f"{value:.1f} ms" if value < 100 else f"{value:.0f} ms"


def rate(tokens_per_s: float) -> str:
    """Tokens per second, with a decimal only where it matters."""
    return f"{tokens_per_s:.1f}" if tokens_per_s < 10 else f"{tokens_per_s:.0f}"


def when(written: str, now: datetime) -> str:
    """A time relative to now, in its time zone: `14:02`, `yesterday 14:02`, `Tue 14:02`, `3 Mar`."""
    try:
        then = datetime.fromisoformat(written).astimezone(now.tzinfo)
    except (ValueError, OverflowError):  # a damaged file, or one of another program
        return "unknown"
    days = (now.date() - then.date()).days
    if days < 7:
        day = {0: "", 1: "yesterday "}.get(days, f"{then:%a} ")
        return f"{day}{then:%H:%M}"
    return f"{then.day} {then:%b}" + (f" {then.year}" if then.year != now.year else "")


def setting(value: object) -> str:
    """A setting's value: `0.8`, `on`, `chain`."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else str(value)


@dataclass(frozen=True)
class LoadingFigures:
    """How far something is: `143 MB of 230 MB`, `12.3 MB/s`, `7 s left`; what is not known is empty."""

    done: str = ""
    rate: str = ""
    left: str = ""

    def __str__(self) -> str:
        return " · ".join(filter(None, (self.done, self.rate, self.left)))

    @property
    def wordings(self) -> tuple[str, ...]:
        """From all of them to the most important one."""
        return str(self), str(replace(self, rate="")), self.left or self.done


def loading(event: Loading) -> tuple[str, float | None, LoadingFigures]:
    """The progress in three parts: what, how far (None if unknown), and the figures."""
    what, left = loading_text(event), seconds_left(event)
    if not event.total:
        return what, None, LoadingFigures(size(event.done) if event.done and event.unit == "bytes" else "")
    share = min(1.0, event.done / event.total)
    if event.unit == "ms":
        figures = LoadingFigures(left=f"about {seconds(left)} left" if left and left >= 0.5 else "nearly there")
    elif event.unit != "bytes":
        figures = LoadingFigures(f"{event.done} of {event.total}")
    else:
        figures = LoadingFigures(f"{size(event.done)} of {size(event.total)}")
        if left is not None:
            figures = replace(figures, rate=f"{size(event.rate)}/s", left=f"{seconds(left)} left")
    return what, share, figures


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
    _, share, figures = loading(event)
    shortest, *longer, whole = loading_wordings(event)
    yield "what", shortest
    if share is not None:
        yield "share", percent(share).rjust(5)
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
