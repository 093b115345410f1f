"""One turn of the chat: a message of the user or a reply."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from specchat.engine.protocol.commands import Message
from specchat.engine.protocol.events import Losslessness, RoundDone, Started
from specchat.engine.protocol.text import visible
from specchat.store.records import Facts, new_id, now
from specchat.tui.state import attachments, thoughts
from specchat.tui.state.reply_figures import Figures
from specchat.tui.state.reply_rounds import ReplyRounds
from specchat.tui.state.reply_settings import loss_of, written_with

_STOPS = {
    "length": "longest reply reached", "stop": "stop string", "context": "context is full", "cancelled": "stopped",
    "died": "the engine died", "failed": "failed", "interrupted": "interrupted",
    "elsewhere": "being written in another window", "edited": "edited",
}  # fmt: skip

_COMPLETE = {
    "end": "the last reply is complete; /edit reply changes it, and then it can go on",
    "stop": "the last reply ended at a stop string",
    "context": "the context is full: the reply cannot go on",
    "elsewhere": "the last reply is being written in another window",
}
"""Why a reply that ended for this reason cannot go on."""


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
    apart: bool = False  # it is written with settings of its own
    facts: Facts = field(default_factory=Facts)  # how it was made
    rounds: ReplyRounds = field(default_factory=ReplyRounds)
    counted_context_tokens: int = 0  # of the chat with this reply, where `figures` do not say it
    _pieces: list[tuple[str, str]] = field(default_factory=list)
    _in_force: Mapping[str, Any] | None = None  # the settings of the last round

    @classmethod
    def edited(cls, text: str) -> Reply:
        """A reply in the user's words."""
        return cls(0, Figures(), text, [-len(text)], "edited")

    def go_on(self, id: int) -> list[str]:
        """Begin to write more of this reply; returns the text of each token so far.

        A replacement character at its end, for half a character, is removed: the model writes that character again.
        """
        while self.text.endswith("\ufffd"):
            self.text, last = self.text[:-1], self.lengths.pop()
            if abs(last) > 1:
                self.lengths.append(last - 1 if last > 0 else last + 1)
        raw = list(self._raw_pieces())
        self._pieces = [(visible(text), origin) for text, origin in raw]
        self.id, self.figures, self.stop, self.counted_context_tokens = id, Figures(), None, 0
        self.begun, self.apart, self.prefilled = False, False, (0, 0)
        return [text for text, _ in raw]

    def start(self, started: Started) -> None:
        """The engine begins to write it, or more of it."""
        self.begun, self._in_force = True, None
        self.figures.start(started)
        self.facts = replace(self.facts, pair=started.pair, seed=started.seed, stop=None, stats=None)
        if not self.lengths or not self.facts.settings:
            self.facts = written_with(self.facts, started.settings, started.loss, 0)

    def use(self, settings: Mapping[str, Any], loss: Losslessness | None) -> None:
        """What is added from now on is written with these settings; the same object where they did not change."""
        if settings is not self._in_force:
            self._in_force = settings
            self.facts = written_with(self.facts, settings, loss, len(self.lengths))

    @property
    def loss(self) -> Losslessness | None:
        """Whether all of it is lossless, and why; None where that is not known."""
        return loss_of(self.facts)

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
        return [(visible(text), origin) for text, origin in self._raw_pieces()]

    def _raw_pieces(self) -> Iterator[tuple[str, str]]:
        """(text, origin) of every piece, as the model wrote it."""
        at = 0
        for length in self.lengths:
            yield self.text[at : at + abs(length)], "drafted" if length > 0 else "target"
            at += abs(length)
        if at < len(self.text):
            yield self.text[at:], "target"

    @property
    def complete_because(self) -> str:
        """Why the reply cannot go on; empty where it can."""
        return _COMPLETE.get(self.stop or "", "")

    def drop_pieces(self) -> None:
        """Free the pieces: they take thirty times the memory of the text and can be rebuilt from it."""
        self._pieces.clear()

    def line(self) -> str:
        """The line of figures under the reply."""
        why = _STOPS.get(self.stop or "")
        counted = [self.figures.line()] if self.figures.rounds else []
        lossy = ["lossy"] if counted and self.loss is not None and not self.loss.lossless else []
        return " · ".join([*([why] if why else []), *counted, *lossy])


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

    @classmethod
    def of(cls, message: Message) -> Turn:
        """The turn that says what a message says."""
        if message.role != "assistant":
            return cls(message.role, message.content)
        reply = Reply(0, Figures(), stop="end")
        reply.add(message.content, "target")
        return cls("assistant", reply=reply)

    @property
    def editable(self) -> str:
        """The text that an edit starts from."""
        return self.reply.text if self.reply else attachments.split(self.content)[0]

    def message(self) -> Message:
        """The turn as the engine reads it: the raw text, thoughts left out."""
        return Message(self.role, thoughts.without_thoughts(self.reply.text) if self.reply else self.content)
