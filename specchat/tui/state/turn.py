"""One turn of the chat: a message of the user or a reply, with its rounds and the settings it was written with."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from specchat.engine.protocol.commands import Message, ReplyConstraint
from specchat.engine.protocol.events import Losslessness, RoundDone, Started
from specchat.engine.protocol.packed_rounds import pack_rounds, path_only, unpack_rounds
from specchat.engine.protocol.text import visible
from specchat.store.records import LARGEST_ROUNDS_BYTES, Facts, SettingsChange, new_id, now
from specchat.tui.state import attachments, thoughts
from specchat.tui.state.reply_figures import Figures
from specchat.tui.text import numbers

WHOLE_TREES = 1024
"""How many of the last rounds of a reply keep their whole tree; in a list each takes about ten kilobytes."""


class ReplyRounds:
    """A reply's rounds, in order. As a list they take a hundred times the memory of the packed bytes.

    Args:
        data: packed rounds that were stored with the reply. Where they cannot be read there are none.
    """

    def __init__(self, data: bytes = b"") -> None:
        self._packed = data, 0  # packed rounds, and of how many rounds in the list they are
        self._list: list[RoundDone] | None = None if data else []

    def __bool__(self) -> bool:
        return bool(self._packed[0] or self._list)

    @property
    def list(self) -> list[RoundDone]:
        if self._list is None:
            data, _ = self._packed
            try:
                self._list = unpack_rounds(data)
            except msgspec.DecodeError:
                self._list = []
            self._packed = data, len(self._list)
        return self._list

    def append(self, round: RoundDone) -> None:
        """Add a round. Those far back keep only their accepted paths: a reply may be of any length."""
        rounds = self.list
        rounds.append(round)
        if (far := len(rounds) - 1 - WHOLE_TREES) >= 0:
            rounds[far] = path_only(rounds[far])

    def pack(self) -> bytes:
        """The rounds as they are stored. May be called from any thread."""
        rounds, (data, count) = self._list, self._packed
        if rounds is not None and len(rounds) != count:
            rounds = rounds[:]
            data = pack_rounds(rounds, LARGEST_ROUNDS_BYTES)
            self._packed = data, len(rounds)
        return data

    def drop_list(self) -> None:
        if self.pack():
            self._list = None


_ACTS_LATER = {"seed"}
"""A change of it holds from the next reply on."""


def written_with(facts: Facts, settings: Mapping[str, Any], loss: Losslessness | None, piece: int) -> Facts:
    """The facts of a reply whose pieces from index `piece` on are written with these settings."""
    claim = None if loss is None else msgspec.to_builtins(loss)
    if piece == 0 or not facts.settings:
        return replace(facts, settings=dict(settings), loss=claim, changes=[])
    before = dict(facts.settings)
    for earlier in facts.changes:
        before |= earlier.settings
    known = before.keys() & settings.keys() - _ACTS_LATER
    changed = {name: settings[name] for name in settings if name in known and settings[name] != before[name]}
    if not changed:
        return facts
    change = SettingsChange(piece, changed, claim)
    return replace(facts, loss=_of_both(facts.loss, claim), changes=[*facts.changes, change])


def changes_text(facts: Facts) -> str:
    """Which settings changed within the reply, as the end of a line about it; empty where none did."""
    names = dict.fromkeys(name for change in facts.changes for name in change.settings)
    return f" · changed within the reply: {', '.join(names)}" if names else ""


_T = TypeVar("_T")


def _as_kept(value: dict[str, Any] | None, kind: type[_T]) -> _T | None:
    try:
        return None if value is None else msgspec.convert(value, kind)
    except msgspec.ValidationError:  # of a forged file
        return None


def _of_both(before: dict[str, Any] | None, now: dict[str, Any] | None) -> dict[str, Any] | None:
    """A reply is lossy once any part of it is; the first such part says why."""
    if before is None or now is None:
        return before or now
    return now if before.get("lossless", True) else before


_STOPS = {
    "stop": "stop string", "context": "context is full", "cancelled": "stopped",
    "died": "the engine died", "failed": "failed", "interrupted": "interrupted",
    "elsewhere": "being written in another window", "edited": "edited",
}  # fmt: skip

COMPLETE = {
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
    taken: Sequence[int] = ()  # tokens of another branch that it begins with, until the engine says their texts
    _pieces: list[tuple[str, str]] = field(default_factory=list)
    _in_force: Mapping[str, Any] | None = None  # the settings of the last round

    def go_on(self, id: int) -> list[str]:
        """Begin to write more of this reply; returns the text of each token so far.

        A replacement character at its end, for half a character, is removed: the model writes that character again.
        """
        while self.text.endswith("\ufffd"):
            self.text, last = self.text[:-1], self.lengths.pop()
            if abs(last) > 1:
                self.lengths.append(last - 1 if last > 0 else last + 1)
        raw = list(self.raw_pieces())
        self._pieces = [(visible(text), origin) for text, origin in raw]
        self.id, self.figures, self.stop, self.counted_context_tokens = id, Figures(), None, 0
        self.begun, self.apart, self.prefilled = False, False, (0, 0)
        return [text for text, _ in raw]

    def start(self, started: Started) -> None:
        """The engine begins to write it, or more of it."""
        self.begun, self._in_force = True, None
        self.figures.context_tokens, self.figures.reused_tokens = started.prompt_tokens, started.reused_tokens
        self.facts = replace(self.facts, pair=started.pair, seed=started.seed, stop=None, stats=None)
        if self.taken and len(self.taken) == len(started.begun):
            lengths = (len(text) for text in started.begun)
            self.facts = replace(self.facts, begun=list(zip(self.taken, lengths, strict=True)))
            for text in started.begun:
                self.add(text, "target")
        self.taken = ()
        if not self.lengths or not self.facts.settings:
            self.facts = written_with(self.facts, started.settings, started.loss, 0)

    def use(self, settings: Mapping[str, Any], loss: Losslessness | None) -> None:
        """What is added from now on is written with these settings; the same object where they did not change."""
        if settings is not self._in_force:
            self._in_force = settings
            self.facts = written_with(self.facts, settings, loss, len(self.lengths))

    @property
    def loss(self) -> Losslessness | None:
        """Whether the whole reply is lossless, and why; None where that is not known."""
        return _as_kept(self.facts.loss, Losslessness)

    @property
    def constraint(self) -> ReplyConstraint | None:
        """What it is held to."""
        return _as_kept(self.facts.constraint, ReplyConstraint)

    def hold_to(self, constraint: ReplyConstraint | None) -> None:
        self.facts = replace(self.facts, constraint=None if constraint is None else msgspec.to_builtins(constraint))

    @property
    def temperature(self) -> float | None:
        """The one that its tokens were drawn with; None where it changed, or a rule draws in its own way."""
        if any("temperature" in change.settings for change in self.facts.changes):
            return None
        settings = self.facts.settings
        temperature = settings.get("temperature") if settings.get("rule") == "follow" else None
        return float(temperature) if isinstance(temperature, int | float) else None

    @property
    def shows_layers(self) -> bool:
        """Whether some of its rounds may say where they were decided."""
        changed = [change.settings for change in self.facts.changes]
        return any(settings.get("lens") for settings in (self.facts.settings, *changed))

    def add(self, text: str, origin: str) -> None:
        if text:
            self._pieces.append((visible(text), origin))
            self.text += text
            self.lengths.append(len(text) if origin == "drafted" else -len(text))

    def add_round(self, round: RoundDone) -> None:
        """Take a round and its text, and the time of the thoughts if it ended them."""
        self.rounds.append(round)
        self.figures.add(round)
        for piece in round.pieces:
            self.add(piece.text, piece.origin)
        if self.facts.thought_s is None and thoughts.closes(self.text, sum(len(piece.text) for piece in round.pieces)):
            spent_s = self.figures.draft_s + self.figures.verify_s + self.figures.other_s
            self.facts = replace(self.facts, thought_s=spent_s)

    @property
    def pieces(self) -> list[tuple[str, str]]:
        """(visible text, origin) of every piece; rebuilt from text and lengths where the pieces were dropped."""
        if self._pieces:
            return self._pieces
        return [(visible(text), origin) for text, origin in self.raw_pieces()]

    def raw_pieces(self) -> Iterator[tuple[str, str]]:
        """(text, origin) of every piece, as the model wrote it."""
        at = 0
        for length in self.lengths:
            yield self.text[at : at + abs(length)], "drafted" if length > 0 else "target"
            at += abs(length)
        if at < len(self.text):
            yield self.text[at:], "target"

    def drop_pieces(self) -> None:
        """Free the pieces: they take thirty times the memory of the text and can be rebuilt from it."""
        self._pieces.clear()

    def line(self) -> str:
        why = _STOPS.get(self.stop or "")
        if self.stop == "length":
            why = f"stopped at {numbers.tokens(self.figures.tokens)} · /continue"
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
        """The turn as the engine reads it: the raw text, thoughts left out, attached files mentioned by their paths."""
        if self.reply is not None:
            return Message(self.role, thoughts.without_thoughts(self.reply.text))
        return Message(self.role, attachments.as_read(self.content) if self.role == "user" else self.content)


_LEAST_CHARACTERS, _LEAST_TIMES = 240, 3
"""What repeats takes so many characters at least, and stands there so many times."""

_LOOKED_AT = 2_400
"""Characters at the end of a text that are looked at."""

_MARK = 16
_NUMBER = re.compile(r"\d+")


def repeats_itself(text: str) -> bool:
    """Whether the end of the text is one piece several times over."""
    end = _NUMBER.sub("0", text[-_LOOKED_AT:])
    mark, at = end[-_MARK:], len(end) - _MARK
    while (before := end.rfind(mark, 0, at + _MARK - 1)) >= 0:
        period = len(end) - _MARK - before
        times = max(_LEAST_TIMES, -(-_LEAST_CHARACTERS // period))
        if times * period > len(end):
            return False
        piece = end[-period:]
        if end.endswith(piece * times):
            return bool(piece.strip())
        at = before
    return False
