"""Filters that every screen line passes: the screen in ASCII, in a browser's glyphs, and without control codes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.cells import cell_len
from rich.segment import Segment
from textual.color import Color
from textual.filter import LineFilter

from specchat.engine.protocol.text import steers, without_steering


class ControlCodeFilter(LineFilter):
    """Removes control codes. They have no width, so the layout stays; `visible` shows them where they are expected."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        if not any(steers(segment.text) for segment in segments):
            return segments
        return [Segment(without_steering(segment.text), segment.style, segment.control) for segment in segments]


PLAINER = str.maketrans({
    "★": "♦", "⭑": "*", "✕": "×", "✗": "×", "◌": "◦", "◐": "◘", "⊘": "ø", "∅": "Ø", "✓": "√", "✎": "*", "⧗": "…",
    "⏎": "¶", "⇥": "»", "⇄": "↔", "⁺": "+", "◇": "◊", "‖": "║", "⇣": "↓", "▶": "►", "▸": "►", "▾": "▼", "▴": "▲",
    "◀": "◄", "◂": "◄", "⟨": "‹", "⟩": "›", "❯": "›", "‣": "›",
    **dict.fromkeys(map(chr, (*range(0x2400, 0x2422),)), "¤"),  # symbols of control codes
})  # fmt: skip
"""Our signs in a browser: its font is the server's Roboto Mono, and the page's terminal draws boxes and blocks.

What is in neither comes from whatever font the machine has, where only the characters of WGL4 may be relied on.
"""


class BrowserGlyphFilter(LineFilter):
    """Replaces signs that a browser may have no glyph for. Every cell stays where it is."""

    def apply(self, segments: Sequence[Segment], background: Color) -> list[Segment]:
        return [
            segment if segment.text.isascii() else Segment(self.plain(segment.text), segment.style, segment.control)
            for segment in segments
        ]

    def plain(self, text: str) -> str:
        return text.translate(PLAINER)


_PLAIN = str.maketrans({
    **dict.fromkeys("─╴╶┄╌▔–—·", "-"), **dict.fromkeys("━═╸╺▀", "="), **dict.fromkeys("│┃║▌▐▎▏▕▍▋▊▉‖", "|"),
    **dict.fromkeys("╭╮╰╯┌┐└┘┯┬┴├┤┼┷┏┓┗┛", "+"), **dict.fromkeys("▁▂_", "_"), **dict.fromkeys("▃▄", "="),
    **dict.fromkeys("▅▆", "+"), **dict.fromkeys("▇█■▓", "#"), "░": ".", "▒": ":",
    "●": "*", "★": "+", "✕": "x", "○": ".", "⊘": "%", "◐": "!", "◌": "?", "✓": "v", "✎": "*", "⧗": "~", "…": "~",
    "⏎": "$", "∅": "0", **dict.fromkeys("⇥→▶▸›⟩", ">"), **dict.fromkeys("←◀◂‹⟨", "<"), **dict.fromkeys("↑▲▴", "^"),
    **dict.fromkeys("↓▼▾⇣", "v"), "×": "x", "τ": "t", "²": "2", "³": "3", "⁺": "+", "≥": ">", "≤": "<", "≈": "~",
    "‘": "'", "’": "'", "“": '"', "”": '"', "•": "*", "\u00a0": " ", "±": "~", "−": "-", "⇄": "=", "◇": "o", "❯": ">",
    "▧": "#", "✗": "x", "�": "?",
})  # fmt: skip


class AsciiFilter(BrowserGlyphFilter):
    """Replaces the app's own characters. Other text stays if the terminal's encoding has it."""

    def __init__(self, encoding: str) -> None:
        super().__init__()
        self._encoding = encoding

    def plain(self, text: str) -> str:
        text = text.translate(_PLAIN)
        try:
            text.encode(self._encoding)
        except UnicodeEncodeError:  # of one character, or of some
            return "".join(map(self.plain, text)) if len(text) > 1 else "?" * cell_len(text)
        return text


def needs_ascii(environment: Mapping[str, str]) -> bool:
    """Whether the locale names an encoding other than UTF-8; without a locale it is taken to be UTF-8."""
    locale = next((said for name in ("LC_ALL", "LC_CTYPE", "LANG") if (said := environment.get(name, ""))), "UTF-8")
    return "utf8" not in locale.lower().replace("-", "")
