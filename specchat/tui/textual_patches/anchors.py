"""Following the end of a scrolled page, from within a layout."""

from __future__ import annotations

from textual.scrollbar import ScrollBar
from textual.widget import Widget

from specchat.tui.textual_patches.version import tested


def is_following(page: Widget) -> bool:
    """Whether the page stays at its end as it grows: it is anchored, and the user has not scrolled away."""
    if not tested():
        return page.is_anchored and page.scroll_y >= page.max_scroll_y
    return page._anchored and not page._anchor_released


def begin_following(page: Widget) -> None:
    """Follow the end from now on, unless the page was anchored before: then the user may have scrolled away.

    `Widget.anchor` would also scroll, which starts another layout.
    """
    if page.is_anchored:
        return
    if tested():
        page._anchored, page._anchor_released = True, False
    else:
        page.call_after_refresh(page.anchor)


def stop_following(page: Widget) -> None:
    """Show the start of a page that fits its window; an anchored page that fits would be drawn at the bottom."""
    if not page.is_anchored:
        return
    if tested():
        page._anchored = False
        scroll_silently(page, 0)
    else:
        page.call_after_refresh(page.anchor, False)
        page.call_after_refresh(page.scroll_to, y=0, animate=False, immediate=True, force=True)


def scroll_silently(page: Widget, scroll_y: int) -> None:
    """Scroll without events: the layout that is under way draws the result."""
    page.set_reactive(Widget.scroll_y, scroll_y)
    page.set_reactive(Widget.scroll_target_y, scroll_y)
    page.vertical_scrollbar.set_reactive(ScrollBar.position, scroll_y)
