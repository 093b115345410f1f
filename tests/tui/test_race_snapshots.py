"""How a race looks, in the middle and at its end. Its clock stands still."""

from __future__ import annotations

import pytest
from driving import connected
from fake import FakeLink, hello, ready
from races import Clock, answer, fast_heat, plain_heat, warm_up
from test_racing_models import race_to_the_end
from test_snapshots import app_of

from specchat.tui.state.races import BenchQuestion

QUESTIONS = [BenchQuestion("chat", "Why is the sky blue?"), BenchQuestion("code", "Sort a list.")] * 2


async def race(pilot, links: list[FakeLink], upto: int | None) -> None:
    d = await connected(pilot, links)
    await d.hear(hello(), ready(settings=ready().settings | {"seed": 7}))
    await d.say("/race How does speculative decoding work?")
    await warm_up(d)
    await plain_heat(d)
    await fast_heat(d, upto)
    if upto is None:
        await pilot.press("end")
    await pilot.pause()


@pytest.mark.parametrize(
    ("size", "upto"), [((120, 40), 20), ((120, 40), None), ((80, 24), None), ((40, 12), None)],
    ids=lambda value: f"{value[0]}x{value[1]}" if isinstance(value, tuple) else str(value),
)  # fmt: skip
def test_a_race(snap_compare, size, upto):
    links: list[FakeLink] = []
    app = app_of(links, clock=Clock())
    assert snap_compare(app, terminal_size=size, run_before=lambda pilot: race(pilot, links, upto))


def test_a_race_of_two_models(snap_compare):
    links: list[FakeLink] = []
    app = app_of(links, clock=Clock())

    async def before(pilot) -> None:
        d = await connected(pilot, links)
        await d.hear(hello(), ready(settings=ready().settings | {"seed": 7}))
        await race_to_the_end(d, "qwen", "How does speculative decoding work?")

    assert snap_compare(app, terminal_size=(80, 24), run_before=before)


@pytest.mark.parametrize("size", [(120, 40), (80, 24), (40, 12)], ids=lambda size: f"{size[0]}x{size[1]}")
def test_a_benchmark(snap_compare, size):
    links: list[FakeLink] = []

    async def before(pilot) -> None:
        d = await connected(pilot, links)
        await d.hear(hello(), ready(settings=ready().settings | {"seed": 7}))
        await d.say("/bench")
        await warm_up(d)
        for _ in range(2):
            await answer(d)
        await fast_heat(d, upto=2)

    app = app_of(links, clock=Clock(), questions=lambda: QUESTIONS)
    assert snap_compare(app, terminal_size=size, run_before=before)
