"""Which reply's rounds are shown: those of the newest reply that has any, or of one that the user looks back at."""

from __future__ import annotations

from collections.abc import Sequence

from specchat.engine.protocol.events import RoundDone
from specchat.tui.state.turn import Reply


class ShownRounds:
    """Holds the rounds of at most two replies as lists; those of all others stay packed."""

    def __init__(self) -> None:
        self._newest: Reply | None = None
        self._looked_at: Reply | None = None

    @property
    def newest(self) -> list[RoundDone]:
        """The rounds of the newest reply, or of the last one that has any."""
        return self._newest.rounds.list if self._newest else []

    @property
    def reply(self) -> Reply | None:
        """The reply whose rounds are shown."""
        return self._looked_at or self._newest

    @property
    def looks_back(self) -> bool:
        """Whether the user looks back at an earlier reply."""
        return self._looked_at is not None

    def follow(self, replies: Sequence[Reply]) -> None:
        """Show the last of these replies that has rounds; the user no longer looks back."""
        self.look_at(None)
        before, self._newest = self._newest, next((reply for reply in reversed(replies) if reply.rounds), None)
        if before is not None and before is not self._newest:
            before.rounds.drop_list()

    def look_at(self, reply: Reply | None) -> None:
        """Show the rounds of this reply until something new is written; None: of the newest one again."""
        before, self._looked_at = self._looked_at, None if reply is self._newest else reply
        if before is not None and before is not self._looked_at:
            before.rounds.drop_list()
