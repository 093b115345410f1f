"""The filter that shows the app's own signs in a browser by characters that every browser can draw.

There the font is the one that comes with the server, Roboto Mono; boxes and blocks are drawn by the page's terminal.
What is in neither comes from whatever font the machine has, where only the characters of WGL4 may be relied on.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.segment import Segment
from textual.color import Color
from textual.filter import LineFilter

PLAINER = str.maketrans({
    "★": "♦", "⭑": "*", "✕": "×", "✗": "×", "◌": "◦", "◐": "◘", "⊘": "ø", "∅": "Ø", "✓": "√", "✎": "*", "⧗": "…",
    "⏎": "¶", "⇥": "»", "⇄": "↔", "⁺": "+", "◇": "◊", "‖": "║", "⇣": "↓", "▶": "►", "▸": "►", "▾": "▼", "▴": "▲",
    "◀": "◄", "◂": "◄", "⟨": "‹", "⟩": "›", "❯": "›", "‣": "›",
    **dict.fromkeys(map(chr, (*range(0x2400, 0x2422),)), "¤"),  # symbols of control codes
})  # fmt: skip


class BrowserGlyphFilter(LineFilter):
    """Replaces signs that a browser may have no glyph for. Every cell stays where it is."""

    def apply(self, segments: Sequence[Segment], background: Color) -> list[Segment]:
        """The same cells in other characters."""
        return [
            segment
            if segment.text.isascii()
            else Segment(segment.text.translate(PLAINER), segment.style, segment.control)
            for segment in segments
        ]
