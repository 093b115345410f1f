"""The types of a text area's edits, which Textual names in its signatures but keeps in private modules."""

from __future__ import annotations

from textual.document._document import EditResult, Location
from textual.document._edit import Edit

__all__ = ["Edit", "EditResult", "Location"]
