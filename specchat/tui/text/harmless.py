"""The last thing every line on the screen goes through: nothing in it steers the terminal, whatever widget drew it."""

from __future__ import annotations

from rich.segment import Segment
from textual.color import Color
from textual.filter import LineFilter

from specchat.engine.protocol.text import steers, without_steering


class Harmless(LineFilter):
    """Takes out what steers terminals. It has no width, so nothing moves; `visible` shows it, where it is expected."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """The same cells without codes in their text."""
        if not any(steers(segment.text) for segment in segments):
            return segments
        return [Segment(without_steering(segment.text), segment.style, segment.control) for segment in segments]
