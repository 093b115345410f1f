"""Which reply's tree and figures are shown beside the chat.

An earlier one that the user looks back at, else one for another program, else the chat's last one with rounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specchat.engine.protocol.events import Changed, Event, Failed, Finished, Losslessness, RoundDone, Started
from specchat.engine.protocol.text import one_line
from specchat.tui.state.reply_figures import Figures
from specchat.tui.state.turn import Reply


@dataclass
class ServedReply:
    """A reply that another program asked for.

    Args:
        client: the program that asked, as it calls itself.
        apart: it has settings of its own, which changes of the app's do not reach.
    """

    reply: Reply
    client: str
    apart: bool = False
    question: str = ""
    _changed: Changed | None = None  # the settings in force, where they changed since it began

    @property
    def running(self) -> bool:
        return self.reply.stop is None

    def apply(self, event: Event) -> None:
        match event:
            case Started():
                self.reply.start(event)
                self.question = one_line(event.messages[-1].content if event.messages else event.text or "")
            case Changed() if not self.apart:
                self._changed = event
            case RoundDone():
                if self._changed is not None:
                    self.reply.use(self._changed.settings, self._changed.loss)
                self.reply.add_round(event)
            case Finished():
                self.reply.figures.finish(event)
                self.reply.stop = event.stop
            case Failed():
                self.reply.stop = "failed"


class ShownRounds:
    """Holds the rounds of at most two replies as lists; those of all others stay packed."""

    def __init__(self) -> None:
        self._newest: Reply | None = None
        self._looked_at: Reply | None = None

    @property
    def newest(self) -> list[RoundDone]:
        return self._newest.rounds.list if self._newest else []

    @property
    def reply(self) -> Reply | None:
        return self._looked_at or self._newest

    @property
    def looks_back(self) -> bool:
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


@dataclass(frozen=True)
class VisibleReply:
    """An earlier reply that the user looks back at, else one for another program, else the chat's last one.

    Args:
        reply: the last of the chat that has rounds, which may not be the one that the figures are of.
        served: the same reply, where it is for another program.
        loss: of the settings in use, where the reply has no rounds.
    """

    reply: Reply | None
    served: ServedReply | None
    figures: Figures | None
    loss: Losslessness | None

    @property
    def rounds(self) -> Sequence[RoundDone]:
        return self.reply.rounds.list if self.reply else ()
