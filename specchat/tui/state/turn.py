"""One message of the chat, and the reply that one may be."""

from __future__ import annotations

from dataclasses import dataclass, field

from msgspec.structs import replace

from specchat.engine.protocol.chat_message import Message
from specchat.engine.protocol.events import RoundDone
from specchat.engine.protocol.text import visible
from specchat.store.records import Facts, new_id, now
from specchat.tui.state import thoughts
from specchat.tui.state.reply_figures import Figures

_STOPS = {
    "length": "longest reply reached", "stop": "stop string", "context": "context is full", "cancelled": "stopped",
    "died": "the engine died", "failed": "failed", "interrupted": "interrupted",
    "elsewhere": "being written in another window",
}  # fmt: skip


@dataclass
class Reply:
    """One reply: its text as the model wrote it, and as pieces that are safe to show."""

    id: int
    figures: Figures
    text: str = ""
    lengths: list[int] = field(default_factory=list)  # of the pieces in `text`; below 0: the target's own
    stop: str | None = None  # why it ended; None while it is being written
    prefilled: tuple[int, int] = (0, 0)
    begun: bool = False
    facts: Facts = field(default_factory=Facts)  # how it is made
    _pieces: list[tuple[str, str]] = field(default_factory=list)

    def add(self, text: str, origin: str) -> None:
        """Take one more piece."""
        if text:
            self._pieces.append((visible(text), origin))
            self.text += text
            self.lengths.append(len(text) if origin == "drafted" else -len(text))

    @property
    def thought_s(self) -> float | None:
        """How long it thought before it answered."""
        return self.facts.thought_s

    def thought(self, round: RoundDone) -> None:
        """Note how long it took where this round ended a thought."""
        if self.thought_s is None and thoughts.closes(self.text, sum(len(piece.text) for piece in round.pieces)):
            spent_s = self.figures.draft_s + self.figures.verify_s + self.figures.other_s
            self.facts = replace(self.facts, thought_s=spent_s)

    @property
    def pieces(self) -> list[tuple[str, str]]:
        """(visible text, origin) of every piece; cut anew from the text of a reply that was kept."""
        if self._pieces:
            return self._pieces
        at, pieces = 0, []
        for length in self.lengths:
            text = self.text[at : at + abs(length)]
            pieces.append((visible(text), "drafted" if length > 0 else "target"))
            at += len(text)
        if at < len(self.text):
            pieces.append((visible(self.text[at:]), "target"))
        return pieces

    def let_pieces_go(self) -> None:
        """They take thirty times as much memory as the text, and can be cut from it again."""
        self._pieces.clear()

    def line(self) -> str:
        """What stands under the reply."""
        why = _STOPS.get(self.stop or "")
        counted = [self.figures.line()] if self.figures.rounds else []
        return " · ".join([*([why] if why else []), *counted])


@dataclass
class Turn:
    """One message of the chat; a reply's text grows inside `reply`."""

    role: str
    content: str = ""
    reply: Reply | None = None
    id: str = field(default_factory=new_id)
    parent: str | None = None  # what it answers
    place: tuple[int, int] = (1, 1)  # which of how many in this place
    created: str = field(default_factory=now)

    def message(self) -> Message:
        """The turn as the engine reads it: the raw text, thoughts left out."""
        return Message(self.role, thoughts.spoken(self.reply.text) if self.reply else self.content)
