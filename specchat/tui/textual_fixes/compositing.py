"""Draw only what changed: Textual's compositor without its detours.

A partial update of Textual's draws every widget that overlaps the smallest rectangle around all changes, containers
behind other widgets included, and writes all of it to the terminal. With a tree at the right and a text at the left
that rectangle is the screen. Here only changed lines are asked of widgets, front to back until a line is full, and
only what differs from what the terminal shows is written.

What this relies on is private to Textual, so it is used with the versions it was tested with, and not otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise

from rich.console import Console
from rich.control import Control
from rich.segment import Segment
from textual._compositor import Compositor, CompositorUpdate, LayoutUpdate, ReflowResult
from textual._styles_cache import StylesCache
from textual.geometry import Region, Size
from textual.screen import Screen
from textual.strip import Strip
from textual.widget import Widget

from specchat.tui.textual_fixes.version import tested

Columns = tuple[int, int]
Lines = dict[int, dict[Columns, Strip | None]]
"""Lines to draw: what stands in which columns, None as long as nobody was asked."""


class News(CompositorUpdate):
    """Strips and where they belong."""

    def __init__(self, strips: list[tuple[int, int, Strip]]) -> None:
        self._strips = strips

    def __rich_console__(self, console: Console, options: object) -> Iterator[Segment]:
        """For whoever draws with Rich."""
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
            parts.append(strip.render(console))
            after = (y, x + strip.cell_length)
        return "".join(parts)


class Sparing(Compositor):
    """Asks for changed lines only, and remembers what the terminal shows."""

    def __init__(self) -> None:
        super().__init__()
        self._shown: dict[int, dict[Columns, Strip]] = {}

    def forget(self) -> None:
        """Somebody else drew: what the terminal shows is not known."""
        self._shown.clear()

    def reflow(self, parent: Widget, size: Size) -> ReflowResult:
        """Lay out everything; where Textual had scrolled before, it would do so once more for whoever asks its size."""
        result = super().reflow(parent, size)
        self._full_map_invalidated = False
        return result

    def render_full_update(self, simplify: bool = False) -> LayoutUpdate:
        """Everything, as Textual does it."""
        self.forget()
        return super().render_full_update(simplify)

    def render_partial_update(self) -> News | None:  # type: ignore[override]  # any update will do
        """What is new within the regions that are marked as changed; None if nothing is."""
        regions = self._dirty_regions.copy()
        self._dirty_regions.clear()
        lines = self._lines_of(regions)
        self._ask(lines)
        news = [(y, x, strip) for y in sorted(lines) for x, strip in self._unseen(y, lines[y])]
        return News(news) if news else None

    def _lines_of(self, regions: Iterable[Region]) -> Lines:
        """The columns, between cuts, that overlap these regions."""
        lines: Lines = {}
        for y, begin, end in self._regions_to_spans(regions):
            if 0 <= y < self.size.height:
                cuts = self.cuts[y]
                columns = lines.setdefault(y, {})
                columns.update(((a, b), None) for a, b in pairwise(cuts) if a < end and b > begin)
        return lines

    def _ask(self, lines: Lines) -> None:
        """Ask widgets, front to back, for what nobody in front of them has drawn."""
        missing = {y: len(columns) for y, columns in lines.items() if columns}
        for widget, (region, clip) in self.visible_widgets.items():
            if not missing:
                return
            area = region.intersection(clip)
            if not area:
                continue
            ys = [y for y in area.line_range if y in missing and self._lacks(lines[y], area)]
            if not ys:
                continue
            crop = Region(area.x - region.x, ys[0] - region.y, area.width, ys[-1] - ys[0] + 1)
            strips = widget.render_lines(crop)  # asking once for lines in between is cheaper than asking twice
            for y in ys:
                missing[y] -= self._fill(lines[y], y, area, strips[y - ys[0]])
                if not missing[y]:
                    del missing[y]

    @staticmethod
    def _lacks(columns: dict[Columns, Strip | None], area: Region) -> bool:
        left, right = area.column_span
        return any(strip is None and left <= a and b <= right for (a, b), strip in columns.items())

    def _fill(self, columns: dict[Columns, Strip | None], y: int, area: Region, strip: Strip) -> int:
        """Put a widget's line between the cuts; says into how many gaps."""
        left, right = area.column_span
        cuts = [cut for cut in self.cuts[y] if left <= cut <= right]
        parts = strip.divide([cut - left for cut in cuts[1:]]) if len(cuts) > 2 else [strip]
        filled = 0
        for begin, end, part in zip(cuts, cuts[1:], parts, strict=False):
            if columns.get((begin, end), part) is None:
                columns[begin, end] = part
                filled += 1
        return filled

    def _unseen(self, y: int, columns: dict[Columns, Strip | None]) -> Iterator[tuple[int, Strip]]:
        """What of a line the terminal does not show yet."""
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


def let_go() -> None:
    """Free what was drawn of widgets that are gone: Textual's cache of colours holds on to a thousand of them."""
    cache = getattr(StylesCache.get_inner_outer, "cache_clear", None)
    if cache is not None:
        cache()


class MainScreen(Screen[None]):
    """The screen of the chat, drawn sparingly where Textual is known to allow it."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        if tested():
            self._compositor = Sparing()

    def on_mount(self) -> None:
        """An editor that had the terminal has drawn on it."""
        self.app.app_resume_signal.subscribe(self, self._forget)

    def on_screen_suspend(self) -> None:
        """Another screen is drawn over this one."""
        self._forget()

    def on_screen_resume(self) -> None:
        """Nothing is known of what the terminal shows."""
        self._forget()

    def _forget(self, _: object = None) -> None:
        if isinstance(self._compositor, Sparing):
            self._compositor.forget()
