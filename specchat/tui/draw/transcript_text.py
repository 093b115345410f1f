"""The conversation as plain text, printed to the terminal when the app ends."""

from __future__ import annotations

from collections.abc import Sequence

from specchat.engine.protocol.text import visible
from specchat.tui.state import attachments, thoughts
from specchat.tui.state.turn import Turn


def conversation(turns: Sequence[Turn]) -> str:
    """All messages; questions are marked, files are only named."""
    return "\n\n".join(said for turn in turns if (said := _said(turn)))


def _said(turn: Turn) -> str:
    if turn.reply is not None:
        return visible(thoughts.without_thoughts(turn.reply.text)).strip("\n")
    without_thoughts, files = attachments.split(turn.content)
    lines = [*without_thoughts.split("\n"), *(f"@{file.path} ({file.size})" for file in files)]
    return visible("\n".join(f"› {line}" if number == 0 else f"  {line}" for number, line in enumerate(lines)))
