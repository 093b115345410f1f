"""Record `assets/demo.jsonl`: one short chat with a coder of 1.5 billion weights, as the engine tells it, untouched.

    python assets/record_demo.py [FILE]

The recording is what the app plays where weights cannot be had. It is made in one go and never edited: if it
should look different, change the questions or the settings below and record again.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from specchat import __version__
from specchat.engine.client.client import Engine
from specchat.engine.protocol import events
from specchat.engine.protocol.codec import encode
from specchat.engine.protocol.commands import Generate, Load, Message
from specchat.engine.protocol.environment import machine

SETTINGS = {
    "pair": "qwen-coder",
    "controller": "fixed",
    "policy": "best_first",
    "width": 3,
    "nodes": 10,
    "depth": 5,
    "seed": 1,
    "max_tokens": 800,
}
"""The pair's own drafter, and trees that branch in most rounds."""

QUESTIONS = (
    "Write a short Python class for a bank account: deposit, withdraw, balance. No comments, no explanation.",
    "Add a method that transfers money to another account. Show the whole class, no explanation.",
)
"""The first reply stands on one screen with its question."""

KEPT = (events.Ready, events.Started, events.Prefilled, events.RoundDone, events.Finished)
"""What a recording holds after its header, just as `specchat run --record` writes it."""


def main(file: Path) -> None:
    """Ask the questions one after another in one chat and write down every event of the replies."""
    header = events.Header(
        version=events.PROTOCOL,
        specchat=__version__,
        made=datetime.now(UTC).isoformat(timespec="seconds"),
        command="python assets/record_demo.py",
        machine=machine(),
    )
    with tempfile.TemporaryDirectory() as folder:
        engine = Engine(Path(folder) / "engine.log")
        try:
            told = [header, *_chat(engine)]
        finally:
            engine.close()
    file.write_bytes(b"".join(encode(event) for event in told))
    print(f"{file}: {len(told)} events, {file.stat().st_size / 1000:.0f} kB")


def _chat(engine: Engine) -> Iterator[events.Event]:
    stream = _heard(engine)
    yield _ready(engine, stream)
    messages: list[Message] = []
    for number, question in enumerate(QUESTIONS, 1):
        messages.append(Message("user", question))
        engine.send(Generate(number, messages))
        reply = ""
        for event in stream:
            if isinstance(event, KEPT):
                yield event
            if isinstance(event, events.RoundDone):
                reply += "".join(piece.text for piece in event.pieces)
            if isinstance(event, events.Finished):
                reply += event.tail
                break
        print(f"> {question}\n\n{reply}\n")
        messages.append(Message("assistant", reply))


def _ready(engine: Engine, stream: Iterator[events.Event]) -> events.Ready:
    """The pair."""
    engine.send(Load(SETTINGS))
    for event in stream:
        if isinstance(event, events.Ready):
            return event
    raise SystemExit("the engine said no more")


def _heard(engine: Engine) -> Iterator[events.Event]:
    """The engine's events; anything that went wrong ends the recording."""
    for event in engine.events():
        if isinstance(event, events.Failed):
            raise SystemExit(f"not recorded: {event.message}")
        if isinstance(event, events.Died):
            raise SystemExit(f"not recorded, the engine died: {event.last_words}")
        yield event


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("demo.jsonl"))
