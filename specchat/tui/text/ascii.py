"""The filter that shows the whole screen in ASCII, one character for each cell."""

from __future__ import annotations

from collections.abc import Mapping

from rich.cells import cell_len
from rich.segment import Segment
from textual.color import Color
from textual.filter import LineFilter

_PLAIN = str.maketrans({
    **dict.fromkeys("─╴╶┄╌▔–—·", "-"), **dict.fromkeys("━═╸╺▀", "="), **dict.fromkeys("│┃║▌▐▎▏▕▍▋▊▉‖", "|"),
    **dict.fromkeys("╭╮╰╯┌┐└┘┯┬┴├┤┼┷┏┓┗┛", "+"), **dict.fromkeys("▁▂_", "_"), **dict.fromkeys("▃▄", "="),
    **dict.fromkeys("▅▆", "+"), **dict.fromkeys("▇█■▓", "#"), "░": ".", "▒": ":",
    "●": "*", "★": "+", "✕": "x", "○": ".", "⊘": "%", "◐": "!", "◌": "?", "✓": "v", "✎": "*", "⧗": "~", "…": "~",
    "⏎": "$", "∅": "0", **dict.fromkeys("⇥→▶▸›⟩", ">"), **dict.fromkeys("←◀◂‹⟨", "<"), **dict.fromkeys("↑▲▴", "^"),
    **dict.fromkeys("↓▼▾⇣", "v"), "×": "x", "τ": "t", "²": "2", "³": "3", "⁺": "+", "≥": ">", "≤": "<", "≈": "~",
    "‘": "'", "’": "'", "“": '"', "”": '"', "•": "*", "\u00a0": " ",
})  # fmt: skip


class AsciiFilter(LineFilter):
    """Replaces the app's own characters. Other text stays if the terminal's encoding has it."""

    def __init__(self, encoding: str) -> None:
        super().__init__()
        self._encoding = encoding

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """The same cells in plainer characters."""
        return [
            segment if segment.text.isascii() else Segment(self._plain(segment.text), segment.style, segment.control)
            for segment in segments
        ]

    def _plain(self, text: str) -> str:
        text = text.translate(_PLAIN)
        try:
            text.encode(self._encoding)
        except UnicodeEncodeError:
            return "".join(map(self._possible, text))
        return text

    def _possible(self, character: str) -> str:
        try:
            character.encode(self._encoding)
        except UnicodeEncodeError:
            return "?" * cell_len(character)
        return character


def needs_ascii(environment: Mapping[str, str]) -> bool:
    """Whether the locale names an encoding other than UTF-8; without a locale it is taken to be UTF-8."""
    locale = next((said for name in ("LC_ALL", "LC_CTYPE", "LANG") if (said := environment.get(name, ""))), "UTF-8")
    return "utf8" not in locale.lower().replace("-", "")
