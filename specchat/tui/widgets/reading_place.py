"""The place in the transcript that is being read; it stays where it is while messages come and go around it."""

from __future__ import annotations

from collections.abc import Iterable

from textual.containers import VerticalScroll
from textual.layout import WidgetPlacement
from textual.scrollbar import ScrollBar
from textual.widget import Widget


class ReadingPlace:
    """The topmost message in the window, and how many of its lines are above the window."""

    def __init__(self, page: VerticalScroll) -> None:
        self._page = page
        self._read: tuple[Widget, int] | None = None

    def forget(self) -> None:
        """The end is followed instead."""
        self._read = None

    def remember(self, views: Iterable[Widget]) -> None:
        """The topmost of these views in the window is being read."""
        top = round(self._page.scroll_y)
        below = (view for view in views if view.virtual_region.bottom > top)
        view = next(below, None)
        self._read = None if view is None else (view, top - view.virtual_region.y)

    def keep(self, placements: Iterable[WidgetPlacement], lowest: int) -> None:
        """Within a layout: scroll so that the same lines are in the same place, at most down to `lowest`."""
        if self._read is None:
            return
        view, above = self._read
        for placement in placements:
            if placement.widget is view:
                self._scroll_to(max(0, min(placement.region.y + above, lowest)))

    def _scroll_to(self, scroll_y: int) -> None:
        """Scroll without events: this happens in the middle of a layout, which is about to draw."""
        self._page.set_reactive(Widget.scroll_y, scroll_y)
        self._page.set_reactive(Widget.scroll_target_y, scroll_y)
        self._page.vertical_scrollbar.set_reactive(ScrollBar.position, scroll_y)
