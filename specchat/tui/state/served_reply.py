"""A reply that the app's engine writes for another program: it is watched, and belongs to no chat."""

from __future__ import annotations

from dataclasses import dataclass, field

from specchat.engine.protocol.events import Changed, Event, Failed, Finished, RoundDone, Started
from specchat.engine.protocol.text import one_line
from specchat.tui.state.reply_figures import Figures
from specchat.tui.state.turn import Reply


@dataclass
class ServedReply:
    """What is known of such a reply.

    Args:
        client: the program that asked, as it calls itself.
        apart: it has settings of its own, which changes of the app's do not reach.
    """

    id: int
    client: str
    apart: bool = False
    question: str = ""
    running: bool = True
    figures: Figures = field(default_factory=Figures)
    reply: Reply = field(init=False)
    _changed: Changed | None = None  # the settings in force, where they changed since it began

    def __post_init__(self) -> None:
        self.reply = Reply(self.id, self.figures)

    def apply(self, event: Event) -> None:
        """Take an event of this reply."""
        match event:
            case Started():
                self.reply.start(event)
                self.question = one_line(event.messages[-1].content if event.messages else event.text or "")
            case Changed() if not self.apart:
                self._changed = event
            case RoundDone():
                if self._changed is not None:
                    self.reply.use(self._changed.settings, self._changed.loss)
                self.reply.rounds.list.append(event)
                self.figures.add(event)
                for piece in event.pieces:
                    self.reply.add(piece.text, piece.origin)
            case Finished():
                self.figures.finish(event)
                self.reply.stop, self.running = event.stop, False
            case Failed():
                self.reply.stop, self.running = "failed", False
            case _:
                pass
