"""The library: load a pair, stream replies, and read their rounds as the records that the engine sends.

The engine is a process of its own unless `process=False`; only then, and for `check`, this process imports torch.
"""

from __future__ import annotations

import io
import itertools
import json
import os
import queue
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, overload

import msgspec

from specchat import errors
from specchat.config import load_catalog, starting_pair
from specchat.engine.client.client import EngineFailure, raise_death
from specchat.engine.client.start_engine import start_engine
from specchat.engine.protocol.bounds import ConstraintKind
from specchat.engine.protocol.codec import encode
from specchat.engine.protocol.commands import Cancel, Command, Generate, Load, Message, Quit, ReplyConstraint
from specchat.engine.protocol.environment import engine_environment
from specchat.engine.protocol.events import (
    Died,
    Event,
    Failed,
    Finished,
    Loading,
    Notice,
    Ready,
    RoundDone,
    Started,
    Stats,
)
from specchat.engine.protocol.round_nodes import ShownNode, nodes_of
from specchat.engine.protocol.text import one_line
from specchat.errors import EngineError, SpecchatError, UsageError, cut
from specchat.reply_page import PageTurn, in_notebook, turns_of
from specchat.settings import OPTIONS, Settings

if TYPE_CHECKING:
    from rich.text import Text

    from specchat.bench.check import Proof

Messages = str | Iterable[Message | Mapping[str, Any]]
"""A question, or the turns of a chat, each a `Message` or a mapping with `role` and `content`."""

Progress = Callable[[Loading | Notice], object]

_T = TypeVar("_T")
_numbers = itertools.count(1)


def load(
    pair: str = "", *, process: bool = True, engine: str = "", progress: Progress | None = None, **settings: Any
) -> Pair:
    """Load a pair, fetching its weights where they are not here; empty: the pair that `specchat` starts with.

    Args:
        process: run the engine in a process of its own, so that its crash is an error here and nothing more.
        engine: the command that starts the engine, such as `ssh box specchat engine`.
        progress: told while weights are fetched and read, and of what the engine wants the user to know.
        settings: by the names of docs/settings.md; options of methods as `{"suffix.depth": 8}`, by `**`.

    Raises:
        UsageError: there is no such pair or setting, or a value is out of range; names the nearest.
        SpecchatError: the pair cannot be loaded.
    """
    wanted = _checked({**({"pair": pair} if pair else {}), **settings})
    if not engine:
        wanted["pair"] = load_catalog().pair(starting_pair(wanted)).name
    link: _Engine = start_engine(engine, wanted, number=next(_numbers)) if process or engine else _EngineHere(wanted)
    return Pair(link, wanted, progress or (lambda event: None))


class _Engine(Protocol):
    """An engine process, or an engine on a thread here."""

    def send(self, command: Command) -> None: ...

    def events(self) -> Iterator[Event]: ...

    def close(self) -> None: ...


class _EngineHere:
    """An engine on a thread of this process; what it is sent is checked as an engine process checks it."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        os.environ.update(engine_environment(int(settings.get("threads", 0))))  # torch reads it once
        from specchat.engine.server.command_queue import CommandQueue
        from specchat.engine.server.host import receive
        from specchat.engine.server.worker import Worker

        self._receive, self._commands = receive, CommandQueue()
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        worker = Worker(self._commands, self._events.put)
        self._thread = threading.Thread(target=self._run, args=(worker.run,), name="engine", daemon=True)
        self._thread.start()

    def _run(self, run: Callable[[], None]) -> None:
        try:
            run()
        except BaseException as error:  # as the end of a process would be: whatever it was, no event comes any more
            self._events.put(Died(None, str(error) or type(error).__name__))

    def send(self, command: Command) -> None:
        self._receive(io.BytesIO(encode(command)), self._commands, self._events.put)

    def events(self) -> Iterator[Event]:
        while True:
            try:
                yield self._events.get(timeout=0.25)  # Ctrl+C is seen between two waits
            except queue.Empty:
                continue

    def close(self) -> None:
        self.send(Quit())
        self._thread.join(2.0)


class Pair:
    """A loaded pair. Writes one reply at a time. To be closed, or used as a context manager; Python's end closes it."""

    def __init__(self, engine: _Engine, settings: dict[str, Any], progress: Progress) -> None:
        self._engine, self._wanted, self._progress = engine, settings, progress
        self._end = weakref.finalize(self, _close, engine)
        self._last_id, self._lock = 0, threading.Lock()
        self._active: weakref.ref[ReplyStream] | None = None  # one that nobody holds any more is not in the way
        self._in_force: dict[str, Any] | None = None
        try:
            self.ready: Ready = self._load(settings)
            """What is loaded: models, device, number format, all settings in force."""
        except BaseException:
            self.close()
            raise

    def stream(
        self,
        messages: Messages,
        *,
        seed: int | None = None,
        json_schema: str | Mapping[str, Any] | None = None,
        regex: str | None = None,
        grammar: str | None = None,
        **settings: Any,
    ) -> ReplyStream:
        """Begin a reply.

        Args:
            messages: what is answered.
            json_schema, regex, grammar: one of them, which the reply is held to: a JSON schema as text or as a mapping,
                a regular expression, a grammar in Lark's notation.
            settings: for this reply alone, instead of those that the pair was loaded with.

        Raises:
            UsageError: a setting, a value or a combination that does not exist, with the nearest that does; or another
                reply is being written.
            EngineError: the engine is gone.
        """
        constraint = _constraint(json_schema=json_schema, regex=regex, grammar=grammar)
        turns = _messages(messages)
        wanted = {**self._wanted, **self._for_one_reply(settings)}
        with self._lock:
            if self._being_written() is not None:
                raise UsageError(
                    "this pair is writing a reply; read it to its end, or stop it with cancel(), "
                    "or load the pair a second time"
                )
            if self._active is not None:
                self._engine.send(Cancel(self._last_id))
                self._active = None
            if wanted != self._in_force:
                self.ready = self._load(wanted)
            self._last_id += 1
            reply = ReplyStream(self, self._last_id)
            self._active = weakref.ref(reply)
            self._engine.send(Generate(reply.id, turns, seed, constraint=constraint))
        return reply

    def cancel(self) -> None:
        """Stop the reply that is being written, if there is one."""
        if (reply := self._being_written()) is not None:
            reply.cancel()

    def check(self, budget: Literal["small", "full"] = "small", **settings: Any) -> Proof:
        """Check that speculation changes the speed and nothing else, as `specchat check` does, in this process.

        The models are loaded for it a second time. Sampling is greedy unless `settings` say otherwise.
        """
        from specchat.bench.configurations import prepare_environment, settings_in_force

        chosen = settings_in_force({**self._wanted, **self._for_one_reply(settings)})
        prepare_environment(chosen.threads)
        from specchat.bench.check import prove
        from specchat.bench.checked_combination import EFFORTS

        if budget not in EFFORTS:
            raise UsageError(
                f"budget = {errors.short(budget)} is not one of its values{errors.nearest(budget, EFFORTS)}"
            )
        return prove(chosen, EFFORTS[budget])

    def close(self) -> None:
        """End the engine. Nothing can be asked of the pair any more."""
        self._active = None
        self._end()

    def __enter__(self) -> Pair:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        ready = self.ready
        draft = f" + {ready.draft}" if ready.draft else ""
        return f"<Pair {ready.pair}: {ready.target}{draft} · {ready.dtype} · {ready.device}>"

    def _being_written(self) -> ReplyStream | None:
        return self._active() if self._active is not None else None

    def _for_one_reply(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Settings that hold for one reply, checked; options of methods join those that the pair was loaded with."""
        checked = _checked(settings)
        for name in checked:
            if name in OPTIONS and not OPTIONS[name].live:
                raise UsageError(f"{name} takes effect when a pair is loaded: specchat.load(…, {name}=…)")
        if "method_options" in checked:
            checked["method_options"] = {**self._wanted.get("method_options", {}), **checked["method_options"]}
        return checked

    def _load(self, settings: dict[str, Any]) -> Ready:
        """Use these settings; models that are loaded stay, and so does the text that they have read."""
        self._in_force = None
        self._engine.send(Load(settings))
        try:
            while not isinstance(event := self._next(), Ready):
                if isinstance(event, Failed):
                    raise_failure(event)
        except KeyboardInterrupt:
            self._engine.send(Cancel())
            raise
        self._in_force = settings
        return event

    def _next(self) -> Event:
        """The engine's next event; progress and notices are passed on besides."""
        if not self._end.alive:
            raise EngineError("this pair is closed, or its engine is gone; specchat.load starts another")
        event = next(self._engine.events())
        if isinstance(event, Died):
            self.close()
            raise_death(event)
        if isinstance(event, Loading | Notice):
            self._progress(event)
        return event


class ReplyStream:
    """A reply as it is written: iterating gives its text piece by piece.

    What is asked for is read up to there: `text`, `tokens`, `stats` and `message` read to the end, `rounds[3]` reads
    four rounds. To leave a loop over it early, also by Ctrl+C or an error, cancels it; what was written stays.
    """

    def __init__(self, pair: Pair, id: int) -> None:
        self.id = id
        self._pair = pair
        self._started: Started | None = None
        self._finished: Finished | None = None
        self._pieces: list[str] = []
        self._rounds: list[RoundRecord] = []
        self._ended = self._cancelling = False

    def __iter__(self) -> Iterator[str]:
        return self._follow(self._pieces)

    @property
    def rounds(self) -> Sequence[RoundRecord]:
        """The rounds, which come while one iterates; their number is known at the end."""
        return _Rounds(self, self._rounds)

    @property
    def started(self) -> Started:
        """The record of the reply's beginning: messages, seed, settings, whether it is lossless."""
        while self._started is None:
            self._demand_event()
        return self._started

    @property
    def finished(self) -> Finished:
        """The record of the reply's end: why it stopped, figures."""
        while self._finished is None:
            self._demand_event()
        return self._finished

    @property
    def text(self) -> str:
        self._read_all()
        return "".join(self._pieces)

    @property
    def tokens(self) -> list[int]:
        self._read_all()
        return [piece.token for round in self._rounds for piece in round.pieces]

    @property
    def stats(self) -> Stats:
        return self.finished.stats

    @property
    def message(self) -> Message:
        """The reply as a turn of the chat."""
        return Message("assistant", self.text)

    def cancel(self) -> None:
        """Stop at the end of the round; the rounds until then stay."""
        if self._ended:
            return
        self._cancelling = True
        self._pair._engine.send(Cancel(self.id))
        try:
            with suppress(SpecchatError):
                self._read_all()
        finally:
            self._end()

    def __repr__(self) -> str:
        state = (self._finished.stop if self._finished else "ended") if self._ended else "being written"
        return f"<ReplyStream: {len(self._rounds)} rounds, {state}>"

    def _repr_html_(self) -> str:
        """What has been read so far, to play in a notebook."""
        known = [self._started, *self._rounds, self._finished]
        return in_notebook(560, *turns_of([event for event in known if event is not None]))

    def _follow(self, items: Sequence[_T]) -> Iterator[_T]:
        """Items that were there and those that come; a generator that is left early cancels the reply."""
        try:
            for at in itertools.count():
                while at >= len(items):
                    if not self._read():
                        return
                yield items[at]
        finally:
            self.cancel()

    def _read_all(self) -> None:
        while self._read():
            pass

    def _demand_event(self) -> None:
        if not self._read():
            raise EngineError("the reply ended before it began or was complete")

    def _read(self) -> bool:
        """Take one event of the reply; False where it has ended."""
        if self._ended:
            return False
        try:
            event = self._pair._next()
            if isinstance(event, Failed) and event.id == self.id:
                raise_failure(event)
        except KeyboardInterrupt:
            if self._cancelling:  # a second Ctrl+C does not wait for the end of the round
                self._end()
            else:
                self.cancel()
            raise
        except BaseException:
            self._end()
            raise
        if getattr(event, "id", None) == self.id:
            self._take(event)
        return True

    def _take(self, event: Event) -> None:
        match event:
            case Started():
                self._started = event
            case RoundDone():
                self._rounds.append(RoundRecord(*(getattr(event, name) for name in event.__struct_fields__)))
                self._say("".join(piece.text for piece in event.pieces))
            case Finished():
                self._finished = event
                self._say(event.tail)
                self._end()

    def _say(self, text: str) -> None:
        if text:
            self._pieces.append(text)

    def _end(self) -> None:
        self._ended = True
        if self._pair._being_written() is self:
            self._pair._active = None


class _Rounds(Sequence["RoundRecord"]):
    def __init__(self, reply: ReplyStream, rounds: list[RoundRecord]) -> None:
        self._reply, self._rounds = reply, rounds

    def __iter__(self) -> Iterator[RoundRecord]:
        return self._reply._follow(self._rounds)

    def __len__(self) -> int:
        self._reply._read_all()
        return len(self._rounds)

    @overload
    def __getitem__(self, at: int) -> RoundRecord: ...

    @overload
    def __getitem__(self, at: slice) -> Sequence[RoundRecord]: ...

    def __getitem__(self, at: int | slice) -> RoundRecord | Sequence[RoundRecord]:
        while not (isinstance(at, int) and 0 <= at < len(self._rounds)) and self._reply._read():
            pass
        return self._rounds[at]


_MARKS = {"root": "", "accepted": "● ", "bonus": "★ ", "rejected": "✕ ", "unreached": "○ ", "pruned": "⊘ ", "cut": "◐ "}
_STYLES = {"accepted": "bold blue", "bonus": "bold orange3", "rejected": "strike dim", "cut": "strike blue"}


class RoundRecord(RoundDone, frozen=True, tag_field="type", tag="round"):
    """The record of a round as the engine sent it; printed, it shows the tree."""

    def __str__(self) -> str:
        return "\n".join("".join(text for text, _ in line) for line in _tree_lines(nodes_of(self)))

    def _repr_html_(self) -> str:
        nodes = nodes_of(self)
        ends = len(nodes) - len({node.parent for node in nodes[1:]})
        return in_notebook(190 + 32 * ends, PageTurn("", rounds=[self]))

    def __rich__(self) -> Text:
        from rich.text import Text

        lines = [Text.assemble(*line, no_wrap=True) for line in _tree_lines(nodes_of(self))]
        return Text("\n").join(lines)


def _tree_lines(nodes: Sequence[ShownNode]) -> Iterator[list[tuple[str, str]]]:
    """A line for each node, below its parent: text and style of each part. What was kept comes first."""
    children: list[list[int]] = [[] for _ in nodes]
    for number, node in enumerate(nodes[1:], 1):
        children[node.parent].append(number)
    waiting = [(0, "", "")]  # node, what leads to it, and what leads to its children
    while waiting:
        number, lead, below = waiting.pop()
        node = nodes[number]
        known = [f"{who} {p:.2f}" for who, p in (("target", node.target), ("draft", node.draft)) if p is not None]
        told = " · ".join([*known, "+".join(node.proposers)]).removesuffix(" · ")
        style = _STYLES.get(node.state, "dim")
        label = one_line(node.text).replace(" ", "·")
        yield [
            (lead, "dim"),
            (_MARKS[node.state], style.removeprefix("strike ")),
            (label, style),
            (f"  {told}" * bool(told), "dim"),
        ]
        kept_first = sorted(children[number], key=lambda child: nodes[child].state not in ("accepted", "bonus"))
        for at, child in reversed([*enumerate(kept_first, 1)]):
            last = at == len(kept_first)
            waiting.append((child, below + ("╰─" if last else "├─"), below + ("  " if last else "│ ")))


def raise_failure(failed: Failed) -> None:
    """Raise what the engine could not do: a usage error as the class it was there.

    Raises:
        SpecchatError: always.
    """
    kind = getattr(errors, failed.kind, EngineFailure)
    if isinstance(kind, type) and issubclass(kind, UsageError):
        raise kind(failed.message)
    raise EngineFailure(failed)


def _close(engine: _Engine) -> None:
    engine.close()
    if isinstance(log := getattr(engine, "log", None), os.PathLike):
        with suppress(OSError):
            os.unlink(log)


def _checked(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings as an engine takes them; None is what was not said, and a name with a dot is a method's option."""
    given = {name: value for name, value in settings.items() if value is not None and "." not in name}
    options = {name: value for name, value in settings.items() if "." in name}
    if options:
        given["method_options"] = {**given.get("method_options", {}), **options}
    checked = Settings().but(given)
    values = {name: getattr(checked, name) for name in given}
    return values | ({"stop": list(values["stop"])} if "stop" in values else {})


def _messages(said: Messages) -> list[Message]:
    try:
        turns = [Message("user", said)] if isinstance(said, str) else list(said)
        messages = msgspec.convert(msgspec.to_builtins(turns), list[Message])
    except (msgspec.ValidationError, TypeError) as error:
        raise UsageError(f"these are no messages of a chat: {cut(str(error))}") from None
    if not messages:
        raise UsageError("there is no message to answer")
    return messages


def _constraint(**given: str | Mapping[str, Any] | None) -> ReplyConstraint | None:
    said: list[tuple[ConstraintKind, str]] = []
    for kind, what in given.items():
        if what is not None:
            said.append((kind, what if isinstance(what, str) else json.dumps(what)))  # type: ignore[arg-type]
    if len(said) > 1:
        raise UsageError("a reply is held to one of json_schema, regex and grammar")
    return ReplyConstraint(*said[0]) if said else None
