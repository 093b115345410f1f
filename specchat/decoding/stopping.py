"""When a reply ends, and where exactly: text, cache and counts are cut at the same token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum


class Stop(Enum):
    """Why a reply ended."""

    END = "end"  # the model's own end of sequence
    LENGTH = "length"
    STOP = "stop"  # a stop string
    CONTEXT = "context"  # no room for another token
    CANCELLED = "cancelled"


@dataclass
class StopStrings:
    """Holds back text that may be the beginning of a stop string, and lets the rest through."""

    strings: Sequence[str]
    found: str | None = None
    _held: str = ""

    def add(self, text: str) -> str:
        """The text that may be shown now. After a stop string was found, nothing more is."""
        if self.found is not None:
            return ""
        if not self.strings and not self._held:
            return text
        self._held += text
        matches = [(place, s) for s in self.strings if (place := self._held.find(s)) >= 0]
        if matches:
            # The one complete first wins, and of several complete there the longest: so it does not depend on the
            # pieces in which the text arrives.
            place, self.found = min(matches, key=lambda match: (match[0] + len(match[1]), match[0]))
            shown, self._held = self._held[:place], ""
            return shown
        keep = max((self._overlap(s) for s in self.strings), default=0)
        cut = len(self._held) - keep
        shown, self._held = self._held[:cut], self._held[cut:]
        return shown

    def finish(self) -> str:
        """The text still held back, which turned out not to be a stop string."""
        held, self._held = self._held, ""
        return held

    def _overlap(self, string: str) -> int:
        """How many last characters of the held text begin `string`."""
        longest = min(len(self._held), len(string) - 1)
        return next((n for n in range(longest, 0, -1) if self._held.endswith(string[:n])), 0)
