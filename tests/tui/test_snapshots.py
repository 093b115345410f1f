"""How the screens look. Nothing on them depends on the clock or the version."""

from __future__ import annotations

import pytest
from driving import PAIRS
from fake import FakeLink, hello, ready, rounds_of, started, stats_of

from specchat.engine import events as ev
from specchat.tui.app import SpecchatApp


def app_of(links: list[FakeLink]) -> SpecchatApp:
    def connect(wake):
        links.append(FakeLink(wake))
        return links[-1]

    app = SpecchatApp(connect, settings={"pair": "smol"}, pairs=PAIRS)
    app.animation_level = "none"
    return app


async def settle(pilot, link: FakeLink) -> None:
    for _ in range(200):
        await pilot.pause(0.02)
        pump = pilot.app._pump
        if not link.waiting and not (pump._armed or pump._busy):
            break
    await pilot.pause()


async def chat(pilot, links: list[FakeLink], upto: int | None, finish: bool) -> None:
    await pilot.pause()
    links[0].put(hello(), ready())
    await settle(pilot, links[0])
    pilot.app.prompt.write("How does it work?")
    await pilot.press("enter")
    rounds = rounds_of()
    links[0].put(started(links[0].last(ev.Generate).messages))
    for round in rounds[:upto]:
        links[0].put(round)
    if finish:
        links[0].put(ev.Finished(1, "end", "", stats_of(rounds), 9.0))
    await settle(pilot, links[0])


@pytest.mark.parametrize("size", [(120, 40), (80, 24), (40, 12)], ids=lambda size: f"{size[0]}x{size[1]}")
def test_a_reply_being_written(snap_compare, size):
    links: list[FakeLink] = []
    assert snap_compare(app_of(links), terminal_size=size, run_before=lambda pilot: chat(pilot, links, 26, False))


def test_a_reply_that_is_complete(snap_compare):
    links: list[FakeLink] = []
    assert snap_compare(app_of(links), terminal_size=(120, 40), run_before=lambda pilot: chat(pilot, links, None, True))


def test_settings_beside_a_reply(snap_compare):
    links: list[FakeLink] = []

    async def before(pilot) -> None:
        await chat(pilot, links, 26, False)
        await pilot.press("f2", "down", "down", "down", "down")
        await pilot.pause()

    assert snap_compare(app_of(links), terminal_size=(120, 40), run_before=before)


def test_choosing_a_pair(snap_compare):
    links: list[FakeLink] = []

    async def before(pilot) -> None:
        await pilot.pause()
        links[0].put(hello(), ready())
        await settle(pilot, links[0])
        await pilot.press("f4")
        await pilot.pause()

    assert snap_compare(app_of(links), terminal_size=(80, 24), run_before=before)


def test_the_first_start_while_weights_are_fetched(snap_compare):
    links: list[FakeLink] = []

    async def before(pilot) -> None:
        await pilot.pause()
        links[0].put(hello(), ev.Loading("fetch", "model.safetensors", 143_000_000, 230_000_000, 12_300_000.0))
        await settle(pilot, links[0])

    assert snap_compare(app_of(links), terminal_size=(80, 24), run_before=before)


def test_an_engine_that_died(snap_compare):
    links: list[FakeLink] = []

    async def before(pilot) -> None:
        await chat(pilot, links, 26, False)
        links[0].put(ev.Died(-9, "MemoryError"))
        await settle(pilot, links[0])

    assert snap_compare(app_of(links), terminal_size=(80, 24), run_before=before)
