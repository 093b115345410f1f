"""What widgets share that grow row by row: nothing that stands already is drawn or laid out again."""

from __future__ import annotations

from textual.geometry import Size
from textual.layout import DockArrangeResult
from textual.reactive import Reactive
from textual.widget import Widget


def arrange_downwards(widget: Widget, size: Size, optimal: bool = False) -> DockArrangeResult:
    """Lay out what stands one below the other, each as high as it needs to be: the height there is does not matter.

    Textual asks for it twice, first to learn the height and then with it, and asks everything inside again whenever
    it changed.
    """
    return Widget.arrange(widget, Size(size.width, 0), optimal)


class Growing(Widget):
    """Keeps its drawn rows when only its height changes, and asks for no second layout after a layout.

    Textual's own draws everything again for every new row, and lays the screen out twice, in case scrollbars were to
    come; those ask for themselves. Only for widgets whose rows look the same at any height: no border at the bottom.
    """

    virtual_size = Reactive(Size(0, 0), repaint=False)
    arrange = arrange_downwards

    def _size_updated(self, size: Size, virtual_size: Size, container_size: Size, layout: bool = True) -> bool:
        if size.width == self._size.width:
            self._size = size
        return super()._size_updated(size, virtual_size, container_size, layout)
