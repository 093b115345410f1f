"""A text area with fixes, and the types of its edits, which its public methods use but private modules define."""

from __future__ import annotations

from textual.document._document import EditResult, Location
from textual.document._edit import Edit
from textual.widgets import TextArea
from textual.widgets.text_area import Selection

from specchat.tui.textual_patches.version import tested

__all__ = ["Edit", "EditResult", "FixedTextArea", "Location"]


class FixedTextArea(TextArea):
    """A text area that survives to undo and redo what made it scroll."""

    def within(self, location: Location) -> Location:
        """The location, or the end of the text if that comes first."""
        return min(location, self.document.end)

    def _refresh_size(self) -> None:
        """Undo and redo of Textual 8.2.8 call this before they move the cursor, which may be on a removed line."""
        if tested():
            self.selection = Selection(*map(self.within, self.selection))
        super()._refresh_size()
