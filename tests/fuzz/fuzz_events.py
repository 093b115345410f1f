"""A damaged stream of events never crashes the app: what comes through the decoder can be shown."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import msgspec

from specchat.engine.protocol import events as ev
from specchat.engine.protocol.codec import EventReader, encode
from tests.fuzz.mutations import mutated
from tests.fuzz.streams import before_ready, others, reply

ATTEMPTS = 6

_SIZES = ((120, 40), (80, 24), (40, 12))
_MODES = ("river", "log", "map", "strip", "auto")
_KEYS = ("f2", "f3", "f8", "ctrl+t", "f4", "tab", "down", "left", "right", "space")


def attempt(seed: int, folder: Path) -> None:
    """One stream through one app; every tenth is undamaged and must arrive whole."""
    rng = random.Random(seed)
    stream = [*before_ready(), *reply(1, [ev.Message("user", "a question")]), *others()]
    lines = [encode(event) for event in stream]
    if seed % 10 == 0:
        events = decoded(lines)
        assert events == stream, "an undamaged stream is refused"
    else:
        events = decoded(mutated(lines, rng))
    screen = asyncio.run(_shown(events, rng))
    assert not {"\x1b", "\x07", "\x9b", "\u202e"} & set(screen), f"the screen is steered from outside: {screen!r}"


def decoded(lines: list[bytes]) -> list[ev.Event]:
    """What an engine's reader lets through of a stream; it ends where the reader refuses."""
    reader, events = EventReader(), list[ev.Event]()
    for line in lines:
        try:
            events.append(reader.read(line))
        except msgspec.DecodeError as error:
            return [*events, ev.Died(None, f"no event: {error}")]
    return events


async def _shown(events: list[ev.Event], rng: random.Random) -> str:
    """The screen after these events, with some keys pressed in between."""
    from driving import driving

    begins = next((at for at, event in enumerate(events) if isinstance(event, ev.Started)), len(events))
    rest = events[begins:]
    stops = sorted(rng.randrange(len(rest) + 1) for _ in range(3))
    async with driving(size=rng.choice(_SIZES), loaded=False, settings={}) as d:
        d.app.set_tree_mode(rng.choice(_MODES))
        await d.hear(*events[:begins])
        await d.say("a question")
        for begin, end in zip([0, *stops], [*stops, len(rest)], strict=True):
            await d.hear(*rest[begin:end])
            await d.pilot.press(rng.choice(_KEYS))
        await d.settle()
        return d.screen()
