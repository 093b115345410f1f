"""One turn of the chat: a message of the user or a reply."""

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
    facts: Facts = field(default_factory=Facts)  # how it was made
    _pieces: list[tuple[str, str]] = field(default_factory=list)

    def add(self, text: str, origin: str) -> None:
        """Take one more piece."""
        if text:
            self._pieces.append((visible(text), origin))
            self.text += text
            self.lengths.append(len(text) if origin == "drafted" else -len(text))

    @property
    def thought_s(self) -> float | None:
        """Seconds of decoding before the answer began; None without thoughts."""
        return self.facts.thought_s

    def note_thought_end(self, round: RoundDone) -> None:
        """Record the time of the thoughts if this round ended them."""
        if self.thought_s is None and thoughts.closes(self.text, sum(len(piece.text) for piece in round.pieces)):
            spent_s = self.figures.draft_s + self.figures.verify_s + self.figures.other_s
            self.facts = replace(self.facts, thought_s=spent_s)

    @property
    def pieces(self) -> list[tuple[str, str]]:
        """(visible text, origin) of every piece; rebuilt from text and lengths where the pieces were dropped."""
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

    def drop_pieces(self) -> None:
        """Free the pieces: they take thirty times the memory of the text and can be rebuilt from it."""
        self._pieces.clear()

    def line(self) -> str:
        """The line of figures under the reply."""
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
        return Message(self.role, thoughts.without_thoughts(self.reply.text) if self.reply else self.content)
