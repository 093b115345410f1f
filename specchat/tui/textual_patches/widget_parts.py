"""Widgets that Textual draws or lays out more often than needed: growing lines, followed pages, border titles."""

from __future__ import annotations

from textual.content import Content
from textual.css.styles import RenderStyles
from textual.dom import DOMNode
from textual.geometry import Region, Size
from textual.layout import DockArrangeResult
from textual.reactive import Reactive
from textual.scrollbar import ScrollBar
from textual.widget import Widget

from specchat.tui.textual_patches import tested


def arrange_vertically(widget: Widget, size: Size, optimal: bool = False) -> DockArrangeResult:
    """Arrange children of automatic height vertically; the result does not depend on the available height.

    Textual calls this twice, without and with the height, and again for all children whenever the height has changed.
    With height 0 both calls share one cache entry.
    """
    return Widget.arrange(widget, Size(size.width, 0), optimal)


class GrowingLines(Widget):
    """Keeps its drawn lines when only its height changes, and requests no second layout after a layout.

    Textual draws all lines again for every new one, and requests a second layout in case scrollbars appear, which
    request it themselves. Only for widgets whose lines do not depend on the height: without a border at the bottom.
    """

    virtual_size = Reactive(Size(0, 0), repaint=False)
    arrange = arrange_vertically

    def _size_updated(self, size: Size, virtual_size: Size, container_size: Size, layout: bool = True) -> bool:
        if tested() and size.width == self._size.width:
            self._size = size
        return super()._size_updated(size, virtual_size, container_size, layout)


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


def styles_of_part(widget: DOMNode, *names: str) -> RenderStyles:
    """The styles of a part of the widget that has these classes.

    With versions of Textual that were not tested the part has no parent: it gets its own colours, but not the
    widget's background.
    """
    part = DOMNode(classes=" ".join(names))
    if tested():
        part._attach(widget)
    widget.app.stylesheet.apply(part, animate=False)
    return part.styles


def drop_drawn_lines(widget: Widget) -> None:
    """Drop the drawn lines of a hidden widget; reading its size to refresh it would lay out the screen."""
    if tested():
        widget._styles_cache.clear()
    else:
        widget.refresh()


def set_border_titles(widget: Widget, title: str, subtitle: str) -> None:
    """Write the titles into the border, and draw only the border."""
    if not tested():
        widget.border_title, widget.border_subtitle = Content(title).markup, Content(subtitle).markup
        return
    widget._border_title, widget._border_subtitle = Content(title), Content(subtitle)
    if not widget.display:
        drop_drawn_lines(widget)
        return
    width, height = widget.outer_size
    left, top = widget.content_offset
    widget.refresh(Region(-left, -top, width, 1), Region(-left, height - 1 - top, width, 1))
