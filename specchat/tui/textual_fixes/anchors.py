"""Following the end of a scrolled page, from within a layout."""

from __future__ import annotations

from textual.widget import Widget

from specchat.tui.textual_fixes.version import tested


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
