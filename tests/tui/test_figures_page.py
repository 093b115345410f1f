"""All figures can be seen at every size: beside the chat, or on a page of their own."""

from __future__ import annotations

import msgspec
import pytest
from driving import Driver, driving, wait_for
from fake import rounds_of

from specchat.tui.screens.side_panel import FiguresScreen

WHY = "guesses came true 7 % of the time, and a guess pays from 21 % on"
ALL = ("speed-up", "guesses", "depth", "guessing", "checking", "other", "context", "memory", WHY)


async def replied(d: Driver) -> None:
    """A reply is being written, and its controller says a lot."""
    await d.say("hi")
    await d.reply(upto=8, finish=False)
    await d.hear(msgspec.structs.replace(rounds_of()[8], why=WHY))


def words(d: Driver) -> str:
    return " ".join(d.screen().replace("│", " ").split())


def brief(d: Driver) -> bool:
    stats = d.view.stats
    return stats.display and not stats.border_subtitle and "speed" in d.drawn(stats)


async def test_the_plan_is_shown_whole():
    async with driving((120, 40)) as d:
        await replied(d)
        await d.pilot.press("f3")
        await d.pilot.pause()
        assert WHY in " ".join(d.drawn(d.view.stats).split())


async def test_a_panel_without_room_says_how_much_is_missing_and_f3_goes_on_to_a_page_with_all():
    async with driving((80, 24)) as d:
        await replied(d)
        assert brief(d)
        await d.pilot.press("f3")
        await d.pilot.pause()
        left = d.view.stats.left_out
        assert left > 0
        assert str(d.view.stats.border_subtitle) == f"F3 shows {left} more"
        await d.pilot.press("f3")
        await d.pilot.pause()
        assert isinstance(d.app.screen, FiguresScreen)
        screen = words(d)
        assert [word for word in ALL if word not in screen] == []
        await d.pilot.press("escape")
        await d.pilot.pause()
        assert d.view.stats.display
        await d.pilot.press("f3", "f3")
        await d.pilot.pause()
        assert not isinstance(d.app.screen, FiguresScreen)
        assert not d.view.stats.display
        await d.pilot.press("f3")
        await d.pilot.pause()
        assert brief(d)


async def test_where_the_settings_stand_in_place_of_the_figures_f3_opens_their_page():
    async with driving((120, 40)) as d:
        await replied(d)
        await d.pilot.press("f2", "f3")
        await d.pilot.pause()
        assert isinstance(d.app.screen, FiguresScreen)


@pytest.mark.parametrize("size", [(40, 12), (120, 16), (50, 30)])
async def test_a_window_without_room_beside_the_chat_shows_them_on_a_page_that_scrolls(size):
    async with driving(size) as d:
        await replied(d)
        await d.pilot.press("f3")
        await d.pilot.pause()
        seen = words(d)
        await d.pilot.press("end")
        await d.pilot.pause()
        seen += words(d)
        assert [word for word in ("speed-up", "guesses", "context", "memory") if word not in seen] == []
        await d.pilot.press("f3")
        await d.pilot.pause()
        assert not isinstance(d.app.screen, FiguresScreen)


async def test_the_page_follows_the_reply():
    async with driving((40, 12)) as d:
        await replied(d)
        await d.pilot.press("f3")
        await d.pilot.pause()
        before = words(d)
        await d.hear(*rounds_of()[9:20])
        await wait_for(d.pilot, lambda: words(d) != before)
