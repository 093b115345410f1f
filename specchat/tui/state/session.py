"""What the app knows: the chat, the reply being written, the engine's state. Events in, facts out; no widgets."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from specchat.engine.protocol.events import (
    Change,
    Changed,
    Died,
    Event,
    Failed,
    Finished,
    Generate,
    Hello,
    Load,
    Loading,
    Loss,
    Message,
    Prefilled,
    Ready,
    RoundDone,
    Started,
)
from specchat.engine.protocol.text import visible
from specchat.settings import SPECULATION
from specchat.store.records import Chat as ChatRow
from specchat.store.records import Facts, new_id, now, title_of
from specchat.tui.state import attachments, thoughts
from specchat.tui.state.message_tree import Branches
from specchat.tui.state.reply_figures import Figures
from specchat.tui.state.setting_effect import Effect

KEPT_ROUNDS = 200
"""Rounds that can be looked at again."""

Phase = Literal["starting", "loading", "ready", "failed", "dead"]

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


@dataclass
class Chat:
    """The whole state behind the screen."""

    wanted: dict[str, Any] = field(default_factory=dict)  # what the user asked for explicitly
    phase: Phase = "starting"
    hello: Hello | None = None
    ready: Ready | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    loss: Loss | None = None
    loading: Loading | None = None
    loading_pair: str = ""
    fetching: str = ""  # what is fetched in the background, and how far
    fetched: str = ""  # a pair that is here since
    refused: str = ""  # a pair that could not be loaded while another stays in use
    problem: str = ""  # one line: why there is no engine or no pair
    id: str = field(default_factory=new_id)
    title: str = ""
    renamed: bool = False  # the title is the user's own
    branches: Branches[Turn] = field(default_factory=Branches)
    running: Reply | None = None
    rounds: deque[RoundDone] = field(default_factory=lambda: deque(maxlen=KEPT_ROUNDS))
    figures: Figures | None = None  # of the reply being written, or the last one
    effect: Effect = field(default_factory=Effect)  # of the last change of settings
    unsaved: bool = False  # the chat cannot be written down at present
    queued: str | None = None
    editing: Turn | None = None  # what is said next is said in its place
    sent_from: str | None = None  # the first turn that is sent on; None: the first of the chat
    system: str = ""
    _wanted_before: dict[str, Any] = field(default_factory=dict)  # should loading fail
    changes: deque[dict[str, Any]] = field(default_factory=deque)  # sent, not answered yet
    _ids: int = 0

    @property
    def turns(self) -> Sequence[Turn]:
        """The path through the chat that is being read."""
        return self.branches.path

    @property
    def can_generate(self) -> bool:
        return self.phase == "ready" and self.running is None

    @property
    def pair(self) -> str:
        """The pair in use; empty while there is none."""
        return self.ready.pair if self.ready else ""

    @property
    def context_tokens(self) -> int:
        """Tokens of the chat the engine holds, as far as known."""
        return self.figures.context_tokens if self.figures else 0

    def load(self, changes: Mapping[str, Any] | None = None) -> Load:
        """The command that loads what the user wants, with some wishes changed."""
        changes, self._wanted_before = changes or {}, dict(self.wanted)
        if self.ready is not None and changes.get("pair", self.ready.pair) != self.ready.pair:
            for name in SPECULATION:  # how to speculate is the pair's own business; how to sample is the user's
                self.wanted.pop(name, None)
        self.wanted.update(changes)
        self.phase, self.problem, self.loading, self.refused = "loading", "", None, ""
        self.loading_pair = str(self.wanted.get("pair", ""))
        return Load(dict(self.wanted))

    def ask(self, text: str) -> Generate:
        """The command that answers this text."""
        self.title = self.title or title_of(attachments.split(text)[0])
        self.branches.add(Turn("user", text))
        return self.generate()

    def generate(self) -> Generate:
        """The command that writes a reply to the chat as it stands."""
        assert self.can_generate, "a reply is asked for only when the engine is free"
        messages = self.messages()
        self._ids += 1
        self._begin(self._ids)
        return Generate(self._ids, messages)

    def messages(self) -> list[Message]:
        """The chat as the engine is to read it."""
        messages = [Message("system", self.system)] if self.system else []
        return messages + [m for turn in self.sent() if (m := turn.message()).content]

    def sent(self) -> Sequence[Turn]:
        """The turns that still have room in the context: all of them, or those since one the user agreed to."""
        start = next((at for at, turn in enumerate(self.turns) if turn.id == self.sent_from), 0)
        return self.turns[start:]

    @property
    def left_out(self) -> int:
        """How many of the oldest turns are not sent on."""
        return len(self.turns) - len(self.sent())

    def change(self, name: str, value: Any) -> Change:
        """The command that changes one live setting; `METHOD.OPTION` names a method's option."""
        settings: dict[str, Any] = {"method_options": {name: value}} if "." in name else {name: value}
        self.changes.append(settings)
        return Change(settings)

    def before_answer(self, turn: Turn | None = None) -> bool:
        """End the path at a question, so that it can be answered again; False if there is none.

        The question is the turn itself, the one it answers, or the last of the chat.
        """
        turn = turn or (self.turns[-1] if self.turns else None)
        if turn is None:
            return False
        at = self.branches.depth(turn) + (turn.reply is None)
        if at == 0:
            return False
        if at < len(self.turns):
            self.branches.cut(self.turns[at])
        return True

    def question(self, turn: Turn | None = None) -> Turn | None:
        """The user's message that this turn is or answers, or the last one of the chat."""
        end = self.branches.depth(turn) + 1 if turn else len(self.turns)
        return next((turn for turn in reversed(self.turns[:end]) if turn.role == "user"), None)

    def fork(self) -> Turn | None:
        """The last turn of the path that was not the only thing said in its place."""
        return next((turn for turn in reversed(self.turns) if turn.place[1] > 1), None)

    def clear(self) -> None:
        """Begin a new chat. A reply that is still being written ends here."""
        self._end("cancelled")
        self.id, self.title, self.renamed, self.system = new_id(), "", False, ""
        self.branches.clear()
        self.rounds.clear()
        self.running = self.figures = self.queued = self.editing = self.sent_from = None

    def adopt(self, row: ChatRow, turns: Iterable[Turn]) -> None:
        """Go on with a chat that was kept."""
        self.clear()
        self.id, self.title, self.renamed, self.system = row.id, row.title, row.renamed, row.system
        self.branches.restore(turns, row.leaf)
        self.sent_from = row.sent_from
        self._look_back()

    def switch(self, turn: Turn, step: int) -> Turn | None:
        """Read another branch; None if there is none on that side."""
        other = self.branches.switch(turn, step)
        self._look_back()
        return other

    def leave(self) -> None:
        """The app is left: a reply that is being written remains as it is."""
        self._end("interrupted")

    def last_reply(self) -> Reply | None:
        """The newest reply of the chat."""
        return next((turn.reply for turn in reversed(self.turns) if turn.reply), None)

    def apply(self, event: Event) -> None:
        """Learn from one event."""
        match event:
            case Hello():
                self.hello = event
            case Loading():
                self.loading = event
                if self.phase == "starting":
                    self.phase = "loading"
            case Ready():
                self.ready, self.phase, self.problem, self.loading = event, "ready", "", None
                self.settings, self.loss = dict(event.settings), event.loss
                self.changes.clear()
                self.effect.forget()
            case Changed():
                self.effect.changed(self.settings, event.settings)
                self.settings, self.loss = dict(event.settings), event.loss
                self._remember(self.changes.popleft() if self.changes else {})
            case Started() if self._is_running(event.id):
                self.settings, self.loss = dict(event.settings), event.loss
                self._context(event)
            case Prefilled() if self.running and self._is_running(event.id):
                self.running.prefilled = (event.done, event.total)
            case RoundDone() if self._is_running(event.id):
                self._round(event)
            case Finished() if self.running and self._is_running(event.id):
                self.running.add(event.tail, "target")
                self.running.figures.finish(event)
                self._end(event.stop)
            case Failed():
                self._failed(event)
            case Died():
                words = event.last_words.strip().splitlines()
                code = "" if event.returncode is None else f" (code {event.returncode})"
                self.problem = f"the engine stopped{code}" + (f": {visible(words[-1])}" if words else "")
                self.phase, self.ready, self.loading = "dead", None, None
                self.changes.clear()
                self._end("died")
            case _:
                pass

    def replay(self, started: Started) -> list[Turn]:
        """Take over the chat of a recorded reply; returns the turns that are new on the screen."""
        spoken = [m for m in started.messages if m.role != "system"]
        told = [turn.message() for turn in self.turns]
        fresh = spoken[len(told) :] if spoken[: len(told)] == told else spoken
        if len(fresh) == len(spoken):
            self.clear()
        turns = [self._told(message) for message in fresh]
        for turn in turns:
            self.branches.add(turn)
        self._begin(started.id)
        return turns

    def _look_back(self) -> None:
        """The figures are those of the last reply that is being read."""
        reply = self.last_reply()
        self.figures = reply.figures if reply else None

    def _told(self, message: Message) -> Turn:
        if message.role != "assistant":
            return Turn(message.role, message.content)
        reply = Reply(0, Figures(), stop="end")
        reply.add(message.content, "target")
        return Turn("assistant", reply=reply)

    def _begin(self, id: int) -> None:
        if (before := self.last_reply()) is not None:
            before.let_pieces_go()
        self.figures = Figures()
        self.running = Reply(id, self.figures)
        self.branches.add(Turn("assistant", reply=self.running))

    def _is_running(self, id: int) -> bool:
        return self.running is not None and self.running.id == id

    def _context(self, started: Started) -> None:
        if self.figures:
            self.figures.context_tokens = started.prompt_tokens
        if self.running:
            self.running.begun = True
            loss = msgspec.to_builtins(started.loss)
            self.running.facts = Facts(started.pair, started.seed, None, dict(started.settings), loss)

    def _round(self, event: RoundDone) -> None:
        assert self.running is not None, "rounds are heard only while a reply runs"
        self.rounds.append(event)
        self.running.figures.add(event)
        self.effect.add(event)
        for piece in event.pieces:
            self.running.add(piece.text, piece.origin)
        self.running.thought(event)

    def _end(self, why: str) -> None:
        if self.running is not None:
            reply = self.running
            stats = msgspec.to_builtins(reply.figures.stats)
            reply.facts = replace(reply.facts, stop=why, stats=stats)
            self.running.stop = why
            self.running = None

    def _remember(self, change: dict[str, Any]) -> None:
        """Ask for an accepted change again when the engine is restarted."""
        options = {**self.wanted.get("method_options", {}), **change.get("method_options", {})}
        self.wanted.update(change)
        if options:
            self.wanted["method_options"] = options

    def _failed(self, event: Failed) -> None:
        if event.during == "load":
            self._load_failed(visible(event.message), called_off=event.kind == "Cancelled")
        elif event.during == "change" and self.changes:
            self.changes.popleft()
        elif event.during == "generate" and (event.id is None or self._is_running(event.id)):
            self._end("failed")

    def _load_failed(self, why: str, *, called_off: bool) -> None:
        """A pair that was ready before is still there; without one there is a problem to solve."""
        self.loading = None
        if self.ready is not None:
            self.phase, self.wanted = "ready", {**self._wanted_before, "pair": self.ready.pair}
            self.refused = "" if called_off else self.loading_pair
        else:
            self.phase, self.problem = "failed", why
