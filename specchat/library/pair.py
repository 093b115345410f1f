"""Loading a pair, and asking it for replies and for the check of the law."""

from __future__ import annotations

import itertools
import json
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from specchat.config import load_catalog, starting_pair
from specchat.engine.client.start_engine import start_engine
from specchat.engine.protocol.bounds import ConstraintKind
from specchat.engine.protocol.commands import Cancel, Generate, Message, ReplyConstraint
from specchat.engine.protocol.events import Ready
from specchat.errors import UsageError, cut, nearest, short
from specchat.library.reply_stream import ReplyStream
from specchat.library.session import EngineHere, Progress, RunningEngine, Session
from specchat.settings import OPTIONS, Settings

if TYPE_CHECKING:
    from specchat.bench.check import Proof

Messages = str | Iterable[Message | Mapping[str, Any]]
"""A question, or the turns of a chat, each a `Message` or a mapping with `role` and `content`."""

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
    own = process or engine
    link: RunningEngine = start_engine(engine, wanted, number=next(_numbers)) if own else EngineHere(wanted)
    return Pair(Session(link, progress or (lambda event: None)), wanted)


class Pair:
    """A loaded pair. Writes one reply at a time. To be closed, or used as a context manager; Python's end closes it."""

    def __init__(self, session: Session, settings: dict[str, Any]) -> None:
        self._session, self._wanted = session, settings
        self._ids, self._lock = itertools.count(1), threading.Lock()
        self._last_reply: Callable[[], ReplyStream | None] = lambda: None  # one that nobody holds is not in the way
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
        own = self._for_one_reply({**settings, "seed": seed})
        seed = own.pop("seed", None) if own.get("seed") != -1 else None
        wanted = {**self._wanted, **own}
        with self._lock:
            before = self._last_reply()
            if before is not None and not before.ended:
                raise UsageError(
                    "this pair is writing a reply; read it to its end, or stop it with cancel(), "
                    "or load the pair a second time"
                )
            if (forgotten := self._session.running) is not None:
                self._session.send(Cancel(forgotten))
            if wanted != self._in_force:
                self.ready = self._load(wanted)
            reply = ReplyStream(self._session, next(self._ids))
            self._last_reply = weakref.ref(reply)
            self._session.running = reply.id
            self._session.send(Generate(reply.id, turns, seed, constraint=constraint))
        return reply

    def cancel(self) -> None:
        """Stop the reply that is being written, if there is one."""
        if (reply := self._last_reply()) is not None:
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
            raise UsageError(f"budget = {short(budget)} is not one of its values{nearest(budget, EFFORTS)}")
        return prove(chosen, EFFORTS[budget])

    def close(self) -> None:
        """End the engine. Nothing can be asked of the pair any more."""
        self._session.close()

    def __enter__(self) -> Pair:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        ready = self.ready
        draft = f" + {ready.draft}" if ready.draft else ""
        return f"<Pair {ready.pair}: {ready.target}{draft} · {ready.dtype} · {ready.device}>"

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
        self._in_force = None  # where this fails it is not known
        ready = self._session.load(settings)
        self._in_force = settings
        return ready


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
            try:
                said.append((kind, what if isinstance(what, str) else json.dumps(what)))  # type: ignore[arg-type]
            except (TypeError, ValueError, RecursionError) as error:
                raise UsageError(f"{kind} cannot be written as JSON: {cut(str(error))}") from None
    if len(said) > 1:
        raise UsageError("a reply is held to one of json_schema, regex and grammar")
    return ReplyConstraint(*said[0]) if said else None
