"""Everything a command prints to a terminal goes through here: text from outside cannot steer it."""

from __future__ import annotations

import io
import sys
from typing import TextIO

from specchat.engine.protocol.text import safe_on_terminal


class SafeTerminal(io.TextIOWrapper):
    """A terminal that takes colours and progress lines, and shows all other codes as symbols."""

    def write(self, text: str) -> int:
        """Write the text as it can be shown."""
        super().write(safe_on_terminal(text))
        return len(text)


def guard_terminals() -> None:
    """From now on print to terminals in this way; what goes into files and pipes stays as it is."""
    sys.stdout, sys.stderr = _guarded(sys.stdout), _guarded(sys.stderr)


def _guarded(stream: TextIO) -> TextIO:
    if stream is None or not stream.isatty() or not hasattr(stream, "buffer"):
        return stream
    stream.flush()
    return SafeTerminal(stream.buffer, stream.encoding, stream.errors, line_buffering=True)
