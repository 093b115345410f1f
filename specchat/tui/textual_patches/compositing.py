"""A compositor that draws only the lines that changed.

A partial update of Textual draws every widget that overlaps the bounding box of all changes, also containers behind
other widgets, and writes all of it to the terminal. With a tree at the right and text at the left that box is the
whole screen. Here only changed lines are rendered, front to back until a line is full, and only what differs from the
terminal's content is written. Terminals disagree about the width of joined emoji: what stands in a line with one is
written at its own column.

It uses private attributes of Textual, so it is used with tested versions only.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.control import Control
from rich.segment import Segment
from textual import on
from textual._compositor import Compositor, CompositorUpdate, LayoutUpdate, ReflowResult
from textual._styles_cache import StylesCache
from textual.cache import FIFOCache
from textual.events import ScreenResume, ScreenSuspend
from textual.geometry import Region, Size
from textual.screen import Screen
from textual.strip import Strip
from textual.widget import Widget

from specchat.tui.textual_patches import tested

_SIZES = {"_crop_cache": 16, "_style_cache": 16} | dict.fromkeys(
    ("_divide_cache", "_filter_cache", "_line_length_cache", "_crop_extend_cache", "_offsets_cache"), 4
)


def _begin(self: Strip, segments: Iterable[Segment], cell_length: int | None = None) -> None:
    self._segments = list(segments)
    self._cell_length = cell_length
    self._render_cache = self._link_ids = self._cell_count = None


def _make_cache(self: Strip, name: str) -> FIFOCache[Any, Any]:
    """Called for an attribute that has no value yet."""
    if name not in _SIZES:
        raise AttributeError(name)
    cache: FIFOCache[Any, Any] = FIFOCache(_SIZES[name])
    setattr(self, name, cache)
    return cache


if tested():  # lines make their caches when they need them
    Strip.__init__ = _begin  # type: ignore[method-assign]
    Strip.__getattr__ = _make_cache  # type: ignore[attr-defined]

Columns = tuple[int, int]
Lines = dict[int, dict[Columns, Strip | None]]
"""Lines to draw: the strip in each range of columns, None until it is rendered."""


_JOINING = "\u200d\ufe0f\U0001f1e6-\U0001f1ff\U0001f3fb-\U0001f3ff"
_JOINS = re.compile(f"[{_JOINING}]")
_JOINED = re.compile(f"(.?[{_JOINING}](?:[{_JOINING}]|(?<=\u200d).)*)")
"""Emoji of several characters: families, flags, tones of skin. A terminal may draw one as several, and wider."""


def render_strip(y: int, x: int, strip: Strip, console: Console) -> str:
    """A strip as it is written to the terminal, whose cursor is at its beginning.

    Where its width on the screen is not known, its cells are cleared first and each part is written at its own column.
    """
    if _JOINS.search(strip.text) is None:
        return strip.render(console)
    cleared = Strip([Segment(" " * segment.cell_length, segment.style) for segment in strip])
    parts = [cleared.render(console)]
    for segment in strip:
        for text in _JOINED.split(segment.text):
            if text:
                parts.append(f"\x1b[{y + 1};{x + 1}H" + Strip([Segment(text, segment.style)]).render(console))
                x += cell_len(text)
    parts.append(f"\x1b[{y + 1};{x + 1}H")
    return "".join(parts)


def _has_gap(columns: dict[Columns, Strip | None], left: int, right: int) -> bool:
    return any(strip is None and left <= a and b <= right for (a, b), strip in columns.items())


class PartialUpdate(CompositorUpdate):
    def __init__(self, strips: list[tuple[int, int, Strip]]) -> None:
        self._strips = strips

    def __rich_console__(self, console: Console, options: object) -> Iterator[Segment]:
        for y, x, strip in self._strips:
            yield Control.move_to(x, y).segment
            yield from strip

    def render_segments(self, console: Console) -> str:
        """What to write to the terminal; the cursor is moved only where strips do not touch."""
        parts: list[str] = []
        after = (-1, -1)
        for y, x, strip in self._strips:
            if after != (y, x):
                parts.append(f"\x1b[{y + 1};{x + 1}H")
            parts.append(render_strip(y, x, strip, console))
            after = (y, x + strip.cell_length)
        return "".join(parts)


class FullUpdate(LayoutUpdate):
    """Every line of the screen."""

    def render_segments(self, console: Console) -> str:
        parts: list[str] = []
        for y, strips in enumerate(self.strips):
            x = 0
            parts.append(f"\x1b[{y + 1};1H")
            for strip in strips:
                parts.append(render_strip(y, x, strip, console))
                x += strip.cell_length
        return "".join(parts)


class DiffingCompositor(Compositor):
    """Renders changed lines only, and records what the terminal shows."""

    def __init__(self) -> None:
        super().__init__()
        self._shown: dict[int, dict[Columns, Strip]] = {}

    def forget(self) -> None:
        """Drop the record of what the terminal shows: something else drew on it."""
        self._shown.clear()

    def reflow(self, parent: Widget, size: Size) -> ReflowResult:
        """Lay out everything, and mark the result as complete; else the next query of a size would lay out again."""
        result = super().reflow(parent, size)
        self._full_map_invalidated = False
        return result

    def render_full_update(self, simplify: bool = False) -> LayoutUpdate:
        self.forget()
        update = super().render_full_update(simplify)
        return FullUpdate(update.strips, update.region)

    def render_partial_update(self) -> PartialUpdate | None:  # type: ignore[override]  # any update will do
        """The changed strips within the regions that are marked as changed; None if there are none."""
        regions = self._dirty_regions.copy()
        self._dirty_regions.clear()
        lines = self._lines_of(regions)
        self._render_missing(lines)
        changed = [(y, x, strip) for y in sorted(lines) for x, strip in self._changed_strips(y, lines[y])]
        return PartialUpdate(changed) if changed else None

    def _render_chops(self, crop: Region, is_rendered_line: Callable[[int], bool]) -> Sequence[Mapping[int, Strip]]:
        """Every column of these lines; Textual's own renders widgets also where others hide them."""
        lines: Lines = {
            y: dict.fromkeys(pairwise(cuts)) if is_rendered_line(y) else {} for y, cuts in enumerate(self.cuts)
        }
        self._render_missing(lines)
        return [{at: strip for (at, _), strip in columns.items() if strip is not None} for columns in lines.values()]

    def _lines_of(self, regions: Iterable[Region]) -> Lines:
        lines: Lines = {}
        for y, begin, end in self._regions_to_spans(regions):
            if 0 <= y < self.size.height:
                cuts = self.cuts[y]
                columns = lines.setdefault(y, {})
                columns.update(((a, b), None) for a, b in pairwise(cuts) if a < end and b > begin)
        return lines

    def _render_missing(self, lines: Lines) -> None:
        """Render widgets from front to back into the ranges that are still missing."""
        missing = {y: len(columns) for y, columns in lines.items() if columns}
        for widget, (region, clip) in self.visible_widgets.items():
            if not missing:
                return
            area = region.intersection(clip)
            if not area:
                continue
            ys = [y for y in area.line_range if y in missing and _has_gap(lines[y], *area.column_span)]
            if not ys:
                continue
            crop = Region(area.x - region.x, ys[0] - region.y, area.width, ys[-1] - ys[0] + 1)
            strips = widget.render_lines(crop)  # rendering unneeded lines in between is cheaper than two calls
            for y in ys:
                missing[y] -= self._fill(lines[y], y, area, strips[y - ys[0]])
                if not missing[y]:
                    del missing[y]

    def _fill(self, columns: dict[Columns, Strip | None], y: int, area: Region, strip: Strip) -> int:
        """Divide a widget's line into the ranges; returns how many were filled."""
        left, right = area.column_span
        cuts = [cut for cut in self.cuts[y] if left <= cut <= right]
        parts = strip.divide([cut - left for cut in cuts[1:]]) if len(cuts) > 2 else [strip]
        filled = 0
        for begin, end, part in zip(cuts, cuts[1:], parts, strict=False):
            if columns.get((begin, end), part) is None:
                columns[begin, end] = part
                filled += 1
        return filled

    def _changed_strips(self, y: int, columns: dict[Columns, Strip | None]) -> Iterator[tuple[int, Strip]]:
        """The strips of a line that differ from what the terminal shows."""
        shown = self._shown.setdefault(y, {})
        cuts = self.cuts[y]
        kept = set(pairwise(cuts))
        for stale in [at for at in shown if at not in kept]:
            del shown[stale]
        for at in sorted(columns):
            strip = columns[at]
            if strip is not None and shown.get(at) != strip:
                shown[at] = strip
                yield at[0], strip


def clear_style_cache() -> None:
    """Clear Textual's cache of colours, which keeps a thousand removed widgets alive."""
    cache = getattr(StylesCache.get_inner_outer, "cache_clear", None)
    if cache is not None:
        cache()


class MainScreen(Screen[None]):
    """The screen of the chat, with the compositor of this module in tested versions of Textual."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        if tested():
            self._compositor = DiffingCompositor()

    def on_compose(self) -> None:
        """Take the classes of the window's size before the widgets are mounted: after it, each is styled again."""
        if tested():
            for cells, breakpoints in zip(
                self.app.size, (self.app.HORIZONTAL_BREAKPOINTS, self.app.VERTICAL_BREAKPOINTS), strict=True
            ):
                self.add_class(*self._get_breakpoint_classes(cells, breakpoints or []))

    def _screen_resized(self, size: Size) -> None:
        """Lay out for another size only: at the start Textual tells the first one three times."""
        if not tested() or size != self._size:
            super()._screen_resized(size)

    def on_mount(self) -> None:
        """Redraw everything after an editor used the terminal."""
        self.app.app_resume_signal.subscribe(self, self._forget)

    @on(ScreenResume)
    def _style_once(self, event: ScreenResume) -> None:
        """What was just mounted has its styles."""
        if not self.stack_updates:
            event.refresh_styles = False

    @on(ScreenSuspend)
    @on(ScreenResume)
    def _forget(self, _: object = None) -> None:
        if isinstance(self._compositor, DiffingCompositor):
            self._compositor.forget()
