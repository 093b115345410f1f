"""`specchat run`: the same engine without the app; text, one JSON object, or the event stream."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from specchat.cli.flags import Output
from specchat.cli.run_output import Outputs
from specchat.cli.streams import piped_text
from specchat.config.file_reading import MOST_CONSTRAINT_BYTES, read_named
from specchat.config.user_config import system_message
from specchat.engine.client.client import Engine, EngineFailure, raise_death
from specchat.engine.client.speedup import stats_line
from specchat.engine.client.start_engine import remove_engine_logs, start_engine
from specchat.engine.protocol import events
from specchat.engine.protocol.bounds import ConstraintKind
from specchat.engine.protocol.commands import Cancel, Generate, Load, Message, ReplyConstraint
from specchat.engine.protocol.stage_text import streaming_text
from specchat.errors import UsageError, cut

_REPLY = 1


@dataclass(frozen=True)
class Asked:
    """The arguments that every form of `run` is given, by the names of its options."""

    prompt: str | None
    settings: dict[str, Any]
    output: Output
    record: Path | None
    system: str | None
    engine: str

    @contextmanager
    def begun(self) -> Iterator[tuple[Engine, Outputs, list[Message]]]:
        """Start an engine for one question, and let it go whatever happens."""
        system = system_message(self.system or "")
        messages = [Message("system", system)] if system else []
        piped = piped_text(self.prompt is not None)
        parts = [part for part in (self.prompt, piped) if part]
        if not parts:
            raise UsageError(
                "there is no prompt: give one, such as specchat run 'Why is the sky blue?', or pipe one in"
            )
        messages.append(Message("user", "\n\n".join(parts)))
        with Outputs(self.output, self.record, [text for text in (self.prompt, system) if text]) as outputs:
            process = start_engine(self.engine, self.settings)
            try:
                yield process, outputs, messages
            finally:
                process.close()
                remove_engine_logs(own=True)


def constraint_of(json_schema: Path | None, regex: str | None, grammar: Path | None) -> ReplyConstraint | None:
    """What the options of `run` hold a reply to.

    Raises:
        UsageError: there are several, or a file cannot be read.
    """
    options: dict[ConstraintKind, str | Path | None] = {"json_schema": json_schema, "regex": regex, "grammar": grammar}
    given = {kind: what for kind, what in options.items() if what is not None}
    if len(given) > 1:
        raise UsageError("a reply is held to one of --json-schema, --regex and --grammar")
    for kind, what in given.items():
        text = what if isinstance(what, str) else read_named(what, cut(str(what)), MOST_CONSTRAINT_BYTES)
        return ReplyConstraint(kind, text)
    return None


def run_once(asked: Asked, constraint: ReplyConstraint | None = None) -> int:
    with asked.begun() as (engine, outputs, messages):
        return _Run(engine, outputs, asked.settings, messages, constraint).go()


@dataclass
class _Run:
    engine: Engine
    outputs: Outputs
    settings: dict[str, Any]
    messages: list[Message]
    constraint: ReplyConstraint | None = None
    interrupted: bool = False
    started: events.Started | None = None
    tokens: list[int] = field(default_factory=list)
    text: list[str] = field(default_factory=list)

    def go(self) -> int:
        before = signal.signal(signal.SIGINT, self._interrupt)
        try:
            self.engine.send(Load(self.settings))
            for event in self.engine.events():
                code = self._on(event)
                if code is not None:
                    return code
            return 130 if self.interrupted else 1
        finally:
            signal.signal(signal.SIGINT, before)

    def _interrupt(self, *_: object) -> None:
        """Ctrl+C: stop at the next round and keep the partial text; before the reply has begun, just leave.

        The command goes out from a thread: this may interrupt one that is being sent.
        """
        if self.started is None or self.interrupted:
            raise KeyboardInterrupt
        self.interrupted = True
        threading.Thread(target=self.engine.send, args=(Cancel(_REPLY),), daemon=True).start()

    def _on(self, event: events.Event) -> int | None:
        self.outputs.event(event)
        match event:
            case events.Loading():
                self.outputs.loading(event)
            case events.Ready():
                if event.streaming:
                    self.outputs.notice(streaming_text(event))
                told = self.outputs.tell_rounds
                keep = "run" if self.messages[0].role == "system" else ""
                generate = Generate(_REPLY, self.messages, logprobs=told, constraint=self.constraint, keep=keep)
                self.engine.send(generate)
            case events.Started():
                self.started = event
            case events.RoundDone():
                self.tokens += [piece.token for piece in event.pieces]
                self._say("".join(piece.text for piece in event.pieces))
            case events.Finished():
                self._say(event.tail)
                self._finish(event)
                return 130 if self.interrupted else 0
            case events.Notice():
                self.outputs.notice(event.text)
            case events.Failed():
                raise EngineFailure(event)
            case events.Died():
                raise_death(event)
        return None

    def _say(self, text: str) -> None:
        self.text.append(text)
        self.outputs.text(text)

    def _finish(self, finished: events.Finished) -> None:
        assert self.started is not None, "a reply starts before it finishes"
        chosen = self.started.settings
        names = ("drafter", "policy", "rule", "controller")
        result = {
            "text": "".join(self.text),
            "tokens": self.tokens,
            "stop": finished.stop,
            "pair": self.started.pair,
            **{name: chosen[name] for name in names},
            "lossless": self.started.loss.lossless,
            **near_ties_of(self.started),
            "seed": self.started.seed,
            "stats": msgspec.to_builtins(finished.stats),
        }
        self.outputs.summary(result, stats_line(finished.stats))


def near_ties_of(started: events.Started | None) -> dict[str, str]:
    """The number format up to whose near-ties a reply is lossless, as JSON; empty where it is exact or lossy."""
    return {"near_ties": started.loss.near_ties} if started and started.loss.near_ties else {}
