"""A damaged recording is refused in one line, or played to its end and written as a page without a crash."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Callable
from pathlib import Path

from specchat.engine.client.client import Link
from specchat.engine.client.replay import Player, Recording, timeline
from specchat.engine.protocol import events as ev
from specchat.engine.protocol.codec import encode
from specchat.errors import RecordingError
from specchat.reply_page import page, turns_of
from tests.fuzz.message_mutations import mutated
from tests.fuzz.streams import recording

ATTEMPTS = 16


def attempt(seed: int, folder: Path) -> None:
    """One file; every tenth is undamaged. Every fourth that can be read is watched in the app."""
    rng = random.Random(seed)
    whole = [encode(event) for event in recording()]
    lines = whole if seed % 10 == 0 else mutated([line.rstrip(b"\n") for line in whole], rng)
    data = b"".join(lines) if seed % 10 == 0 else b"\n".join(lines) + b"\n"
    if seed % 10 == 1:
        data = rng.randbytes(rng.choice((0, 1, 80, 5000)))
    file = folder / "a.jsonl"
    file.write_bytes(data)
    try:
        read = Recording.read(file)
    except RecordingError as error:
        refused = str(error)
    else:
        refused = ""
    assert seed % 10 or not refused, f"an undamaged recording is refused: {refused}"
    assert "\n" not in refused, f"an error is one line: {refused!r}"
    if refused:
        return
    waits = [wait_s for wait_s, _ in timeline(read)]
    assert all(0 <= wait_s <= 1e9 for wait_s in waits), "time runs forwards"
    written = page("a recording", "", turns_of(read.events))
    assert written.count("<script") == 2 * any(isinstance(event, ev.RoundDone) for event in read.events)
    assert not re.search("[\x00-\x08\x0b-\x1f\u202a-\u202e]", written)
    if seed % 4 == 0:
        asyncio.run(_watched(read))


async def _watched(read: Recording) -> None:
    from specchat.tui.app import SpecchatApp
    from specchat.tui.services.context import AppSetup

    players: list[Player] = []

    def play(wake: Callable[[], None]) -> Link:
        players.append(Player(read, wake))
        return players[0]

    app = SpecchatApp(AppSetup(play), settings={})
    async with app.run_test(size=(80, 24)) as pilot:
        for _ in range(200):
            await pilot.pause(0.01)
            if players:
                players[0].step()
                if players[0].ended:
                    break
        await pilot.pause(0.2)
    players[0].close()
    assert any(isinstance(event, ev.Started) for event in read.events), "a recording holds a reply"
