"""The base of widgets that grow line by line: lines that are already drawn are not drawn or laid out again."""

from __future__ import annotations

from textual.geometry import Size
from textual.layout import DockArrangeResult
from textual.reactive import Reactive
from textual.widget import Widget

from specchat.tui.textual_patches.version import tested


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
