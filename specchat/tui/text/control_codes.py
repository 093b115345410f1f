"""The filter that removes terminal control codes from every line on the screen, whatever widget drew it."""

from __future__ import annotations

from rich.segment import Segment
from textual.color import Color
from textual.filter import LineFilter

from specchat.engine.protocol.text import steers, without_steering


class ControlCodeFilter(LineFilter):
    """Removes control codes. They have no width, so the layout stays; `visible` shows them where they are expected."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """The same cells without codes in their text."""
        if not any(steers(segment.text) for segment in segments):
            return segments
        return [Segment(without_steering(segment.text), segment.style, segment.control) for segment in segments]
