"""A damaged stream of events never crashes the app: what comes through the decoder can be shown."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import msgspec

from specchat.engine.protocol import events as ev
from specchat.engine.protocol.codec import EventReader, encode
from specchat.engine.protocol.commands import Message
from tests.fuzz.message_mutations import mutated, shifted
from tests.fuzz.streams import before_ready, others, reply

ATTEMPTS = 6

_SIZES = ((120, 40), (80, 24), (40, 12))
_MODES = ("river", "log", "map", "strip", "auto")
_KEYS = ("f2", "f3", "f8", "ctrl+t", "f4", "tab", "space")
_WALK = ("right", "left", "down", "up", "home", "end")


def attempt(seed: int, folder: Path) -> None:
    """One stream through one app; every tenth is undamaged and must arrive whole, half of them have one wrong round."""
    rng = random.Random(seed)
    stream = [*before_ready(), *reply(1, [Message("user", "a question")]), *others()]
    lines = [encode(event) for event in stream]
    stop = len(lines)
    if seed % 10 == 0:
        assert decoded(lines) == stream, "an undamaged stream is refused"
    elif seed % 2:
        stop = rng.choice([at for at, event in enumerate(stream) if isinstance(event, ev.RoundDone)])
        lines[stop] = shifted(lines[stop], rng)
    else:
        lines = mutated(lines, rng)
    screen = asyncio.run(_shown(decoded(lines), stop + 1, rng))
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


async def _shown(events: list[ev.Event], stop: int, rng: random.Random) -> str:
    """The screen after these events; at `stop` all is drawn, and its tree is walked."""
    from driving import driving

    begins = next((at for at, event in enumerate(events) if isinstance(event, ev.Started)), len(events))
    async with driving(size=rng.choice(_SIZES), loaded=False, settings={}) as d:
        d.view.side_panel.set_tree_mode(rng.choice(_MODES))
        await d.hear(*events[:begins])
        await d.say("a question")
        await d.hear(*events[begins:stop])
        d.view.tree_panel.focus()
        for key in (*rng.choices(_WALK, k=4), rng.choice(_KEYS)):
            await d.pilot.press(key)
        await d.hear(*events[max(begins, stop) :])
        await d.settle()
        return d.screen()
