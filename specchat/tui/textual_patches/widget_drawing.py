"""Drawing of a widget in parts: its border titles alone, and dropping the lines of a hidden widget."""

from __future__ import annotations

from textual.content import Content
from textual.geometry import Region
from textual.widget import Widget

from specchat.tui.textual_patches.version import tested


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
