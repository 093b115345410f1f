"""The styles of a part of a widget, from the style sheet, without declaring the part as a component class."""

from __future__ import annotations

from textual.css.styles import RenderStyles
from textual.dom import DOMNode

from specchat.tui.textual_patches.version import tested


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
