"""Damaged commands never stop an engine: each is answered or refused, and what it says can be read."""

from __future__ import annotations

import io
import random
from pathlib import Path

from specchat.engine.protocol import events as ev
from specchat.engine.protocol.codec import EventReader, encode
from specchat.engine.protocol.commands import (
    Cancel,
    Change,
    Command,
    Compare,
    Count,
    Generate,
    Learning,
    Load,
    Message,
    Pace,
    Quit,
    ReplyConstraint,
    Statistics,
    WhatIf,
)
from specchat.engine.server.command_queue import CommandQueue
from specchat.engine.server.host import receive
from tests.fuzz.message_mutations import mutated

ATTEMPTS = 8
CPU_S = 60.0

_LAST = 999
_TALK = [Message("user", "hello")]
_LOAD = Load({"pair": "scripted", "max_tokens": 24, "stop": ["zzz"], "method_options": {}})
_TOOLS = '[{"type": "function", "function": {"name": "add", "parameters": {"properties": {"a": {"enum": [1]}}}}}]'
_COMMANDS: list[Command] = [
    _LOAD,
    Pace(1, rounds=2, gap_s=0.001),
    Generate(1, _TALK, 7),
    Change({"width": 3, "temperature": 0.5}),
    Count(2, _TALK),
    Generate(3, [Message("system", "short"), *_TALK], None, {"controller": "off", "max_tokens": 4}),
    Compare(4, _TALK, 7, [1, 2, 3], [1, 2, 4], {"temperature": 0.7}),
    WhatIf(5, "scripted", _TALK, 7, [1, 2, 3, 4], {"nodes": 4}, {"nodes": 8, "temperature": 0.5}, [1], 2),
    Generate(5, _TALK, 7, constraint=ReplyConstraint("calls", chosen=("add",)), tools=_TOOLS),
    Generate(6, _TALK, 7, constraint=ReplyConstraint("calls", single=True), tools=_TOOLS),
    Cancel(9),
    Statistics(),
    Learning(),
    Learning(forget=True),
]


def attempt(seed: int, folder: Path) -> None:
    """One session; after whatever was asked the engine still answers. Every tenth session is undamaged."""
    from specchat.engine.server.worker import Worker

    rng = random.Random(seed)
    lines = [encode(command) for command in _COMMANDS]
    if seed % 10:
        lines = [encode(_LOAD), *mutated([line.rstrip(b"\n") for line in lines], rng)]
    mailbox, reader, heard = CommandQueue(), EventReader(), list[ev.Event]()

    def emit(event: ev.Event) -> None:
        heard.append(reader.read(encode(event)))  # an engine says nothing that its reader would refuse
        if isinstance(event, ev.RoundDone) and seed % 10:
            mailbox.receive(Cancel(event.id))  # it may have been told to wait for a long time between rounds
        if isinstance(event, ev.Compared | ev.Failed) and event.id == _LAST:
            mailbox.receive(Quit())

    last = encode(Compare(_LAST, _TALK, 7, [1], [2]))  # it is answered when nothing else is left to do
    receive(io.BytesIO(b"\n".join([*(line.rstrip(b"\n") for line in lines), last])), mailbox, emit)
    Worker(mailbox, emit).run()
    assert getattr(heard[-1], "id", None) == _LAST, f"the engine's last word is {heard[-1]}"
    failures = [event for event in heard if isinstance(event, ev.Failed)]
    assert not [told for told in failures if told.message.startswith("internal error")], failures
    if seed % 10 == 0:
        assert not failures, failures
        assert sum(isinstance(event, ev.Finished) for event in heard) == 4
