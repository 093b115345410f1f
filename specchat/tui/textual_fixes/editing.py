"""The types of a text area's edits, which Textual's public methods use but private modules define."""

from __future__ import annotations

from textual.document._document import EditResult, Location
from textual.document._edit import Edit

__all__ = ["Edit", "EditResult", "Location"]
