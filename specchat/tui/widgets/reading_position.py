"""Keeps the reading position in the transcript while messages are mounted and removed around it."""

from __future__ import annotations

from collections.abc import Iterable

from textual.containers import VerticalScroll
from textual.layout import WidgetPlacement
from textual.widget import Widget

from specchat.tui.textual_patches.widget_parts import scroll_silently


class ReadingPosition:
    """The topmost visible message, and how many of its lines are above the window."""

    def __init__(self, page: VerticalScroll) -> None:
        self._page = page
        self._position: tuple[Widget, int] | None = None

    def clear(self) -> None:
        """Keep no position: the end is followed."""
        self._position = None

    def remember(self, views: Iterable[Widget]) -> None:
        """Take the topmost visible one of these views as the reading position."""
        top = round(self._page.scroll_y)
        below = (view for view in views if view.virtual_region.bottom > top)
        view = next(below, None)
        self._position = None if view is None else (view, top - view.virtual_region.y)

    def restore(self, placements: Iterable[WidgetPlacement], lowest: int) -> None:
        """During a layout: scroll so that the same lines are visible, at most down to `lowest`."""
        if self._position is None:
            return
        view, above = self._position
        for placement in placements:
            if placement.widget is view:
                scroll_silently(self._page, max(0, min(placement.region.y + above, lowest)))
