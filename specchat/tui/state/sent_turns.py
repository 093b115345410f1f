"""Which turns of a chat prompts contain: all, or those after the ones that the user left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specchat.tui.state.turn import Turn


@dataclass
class SentTurns:
    """Where the turns that are sent begin. On a path without that turn all are sent."""

    first: str | None = None  # id of the first turn that is sent; None: the first of the chat
    left: str | None = None  # id of the last turn, where the next message is sent without any before it

    def of(self, path: Sequence[Turn]) -> Sequence[Turn]:
        """The turns of the path that are sent."""
        start = next((at for at, turn in enumerate(path) if turn.id == self.first), 0)
        return path[start:]

    def before_next(self, path: Sequence[Turn]) -> Sequence[Turn]:
        """The turns of the path that are sent with the next message."""
        return () if path and path[-1].id == self.left else self.of(path)

    def leave_out(self, path: Sequence[Turn], count: int) -> None:
        """Leave out so many of the turns that are sent with the next message; all of them, where it stands alone."""
        sent = self.before_next(path)
        if count < len(sent):
            self.first = sent[count].id
        elif sent:
            self.left = sent[-1].id

    def begin_at(self, turn: Turn, path: Sequence[Turn]) -> None:
        """A message is added behind the path: it is the first that is sent, where all before it were left out."""
        if path and path[-1].id == self.left:
            self.first, self.left = turn.id, None
