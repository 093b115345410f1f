"""A line of text to type into, of the screens over the chat."""

from __future__ import annotations

from textual import events
from textual.widgets import Input

from specchat.tui.text.key_names import typed_by


class LineInput(Input):
    """Textual's input. Alt and a letter type nothing, as in the prompt: they act where they are bound."""

    async def on_key(self, event: events.Key) -> None:
        """Leave what types nothing to whoever has bound it."""
        if event.is_printable and not typed_by(event):
            event.prevent_default()
