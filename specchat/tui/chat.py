"""What the app knows: the chat, the reply being written, the engine's state. Events in, facts out; no widgets."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from specchat.engine.events import (
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
    PlainSpeed,
    Prefilled,
    Ready,
    RoundDone,
    Started,
)
from specchat.engine.text import visible
from specchat.tui.figures import RECENT_ROUNDS, Figures

Phase = Literal["starting", "loading", "ready", "failed", "dead"]

_STOPS = {
    "length": "longest reply reached", "stop": "stop string", "context": "context is full", "cancelled": "stopped",
    "died": "the engine died", "failed": "failed",
}  # fmt: skip


_PAIRS_OWN = ("drafter", "policy", "rule", "controller", "width", "depth", "nodes", "method_options")


@dataclass
class Reply:
    """One reply: its text as the model wrote it, and as pieces that are safe to show."""

    id: int
    figures: Figures
    text: str = ""
    pieces: list[tuple[str, str]] = field(default_factory=list)  # (visible text, origin)
    stop: str | None = None  # why it ended; None while it is being written
    prefilled: tuple[int, int] = (0, 0)
    begun: bool = False

    def add(self, text: str, origin: str) -> None:
        """Take one more piece."""
        self.text += text
        if text:
            self.pieces.append((visible(text), origin))

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

    def message(self) -> Message:
        """The turn as the engine reads it: the raw text."""
        return Message(self.role, self.reply.text if self.reply else self.content)


@dataclass
class Chat:
    """The whole state behind the screen."""

    wanted: dict[str, Any] = field(default_factory=dict)  # what the user asked for explicitly
    phase: Phase = "starting"
    hello: Hello | None = None
    ready: Ready | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    loss: Loss | None = None
    plain: PlainSpeed | None = None
    loading: Loading | None = None
    loading_pair: str = ""
    problem: str = ""  # one line: why there is no engine or no pair
    turns: list[Turn] = field(default_factory=list)
    running: Reply | None = None
    rounds: deque[RoundDone] = field(default_factory=lambda: deque(maxlen=RECENT_ROUNDS))
    figures: Figures | None = None  # of the reply being written, or the last one
    queued: str | None = None
    system: str = ""
    changes: deque[dict[str, Any]] = field(default_factory=deque)  # sent, not answered yet
    _ids: int = 0

    @property
    def can_generate(self) -> bool:
        return self.phase == "ready" and self.running is None

    @property
    def context_tokens(self) -> int:
        """Tokens of the chat the engine holds, as far as known."""
        return self.figures.context_tokens if self.figures else 0

    def load(self, changes: Mapping[str, Any] | None = None) -> Load:
        """The command that loads what the user wants, with some wishes changed."""
        changes = changes or {}
        if self.ready is not None and changes.get("pair", self.ready.pair) != self.ready.pair:
            for name in _PAIRS_OWN:  # how to speculate is the pair's own business; how to sample is the user's
                self.wanted.pop(name, None)
        self.wanted.update(changes)
        self.phase, self.problem, self.loading = "loading", "", None
        self.loading_pair = str(self.wanted.get("pair", ""))
        return Load(dict(self.wanted))

    def ask(self, text: str) -> Generate:
        """The command that answers this text."""
        self.turns.append(Turn("user", text))
        return self.generate()

    def generate(self) -> Generate:
        """The command that writes a reply to the chat as it stands."""
        assert self.can_generate, "a reply is asked for only when the engine is free"
        messages = [Message("system", self.system)] if self.system else []
        messages += [m for turn in self.turns if (m := turn.message()).content]
        self._ids += 1
        self._begin(self._ids)
        return Generate(self._ids, messages)

    def change(self, name: str, value: Any) -> Change:
        """The command that changes one live setting; `METHOD.OPTION` names a method's option."""
        settings: dict[str, Any] = {"method_options": {name: value}} if "." in name else {name: value}
        self.changes.append(settings)
        return Change(settings)

    def drop_reply(self) -> bool:
        """Forget the last reply, so that its question can be answered again; False if there is none."""
        if self.turns and self.turns[-1].reply is not None:
            self.turns.pop()
        return bool(self.turns) and self.turns[-1].role == "user"

    def clear(self) -> None:
        """Begin a new chat. A reply that is still being written is no longer listened to."""
        self.turns.clear()
        self.rounds.clear()
        self.running = self.figures = self.queued = None

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
            case PlainSpeed():
                self.plain = event
                if self.figures:
                    self.figures.plain = event
            case Ready():
                self.ready, self.phase, self.problem, self.loading = event, "ready", "", None
                self.settings, self.loss, self.plain = dict(event.settings), event.loss, event.plain
                self.changes.clear()
            case Changed():
                self.settings, self.loss = dict(event.settings), event.loss
                self._remember(self.changes.popleft() if self.changes else {})
            case Started() if self._is_running(event.id):
                self.settings, self.loss = dict(event.settings), event.loss
                self._context(event.prompt_tokens)
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
        self.turns += turns
        self._begin(started.id)
        return turns

    def _told(self, message: Message) -> Turn:
        if message.role != "assistant":
            return Turn(message.role, message.content)
        reply = Reply(0, Figures(), stop="end")
        reply.add(message.content, "target")
        return Turn("assistant", reply=reply)

    def _begin(self, id: int) -> None:
        self.figures = Figures(self.plain)
        self.running = Reply(id, self.figures)
        self.turns.append(Turn("assistant", reply=self.running))

    def _is_running(self, id: int) -> bool:
        return self.running is not None and self.running.id == id

    def _context(self, tokens: int) -> None:
        if self.figures:
            self.figures.context_tokens = tokens
        if self.running:
            self.running.begun = True

    def _round(self, event: RoundDone) -> None:
        assert self.running is not None, "rounds are heard only while a reply runs"
        self.rounds.append(event)
        self.running.figures.add(event)
        for piece in event.pieces:
            self.running.add(piece.text, piece.origin)

    def _end(self, why: str) -> None:
        if self.running is not None:
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
            self._load_failed(visible(event.message))
        elif event.during == "change" and self.changes:
            self.changes.popleft()
        elif event.during == "generate" and (event.id is None or self._is_running(event.id)):
            self._end("failed")

    def _load_failed(self, why: str) -> None:
        """A pair that was ready before is still there; without one there is a problem to solve."""
        self.loading = None
        if self.ready is not None:
            self.phase = "ready"
            self.wanted["pair"] = self.ready.pair
        else:
            self.phase, self.problem = "failed", why
