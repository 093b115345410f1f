"""What left the screen is freed once the app is idle; no garbage collection runs before."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
from driving import driving
from test_long_chats import opened, still
from textual.strip import Strip
from textual.widget import Widget

from specchat.tui.services import event_pump
from specchat.tui.services.event_pump import GarbageCollection
from specchat.tui.widgets import mounted_page

pytestmark = pytest.mark.usefixtures("drawing_at_once")


class Clock:
    """The time of the running event loop, which passes only when a test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._now_s = asyncio.get_running_loop().time()
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: self._now_s)

    async def wait(self, seconds: float) -> None:
        """Let time pass, and every timer fire that is due then."""
        self._now_s += seconds
        for _ in range(3):
            await asyncio.sleep(0)


@pytest.fixture
def collected(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """One entry for each collection of everything that was asked for."""
    done: list[str] = []
    monkeypatch.setattr(gc, "collect", lambda *_: done.append("collected"))
    return done


@pytest.fixture
def only_asked_for(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No collection but those that are asked for."""
    enable = gc.enable
    monkeypatch.setattr(gc, "enable", lambda: None)
    gc.disable()
    yield
    enable()


async def test_what_was_left_behind_is_collected_once(collected: list[str], monkeypatch: pytest.MonkeyPatch):
    clock = Clock(monkeypatch)
    tidy = GarbageCollection(lambda: True)
    for _ in range(5):
        tidy.schedule()
        await clock.wait(event_pump.IDLE_S / 2)
    assert not collected
    await clock.wait(event_pump.IDLE_S)
    assert collected == ["collected"]
    assert not pending()


async def test_nothing_is_collected_while_something_moves(collected: list[str], monkeypatch: pytest.MonkeyPatch):
    clock = Clock(monkeypatch)
    moving = True
    tidy = GarbageCollection(lambda: not moving)
    tidy.schedule()
    await clock.wait(2 * event_pump.IDLE_S)
    assert not collected
    moving = False
    await clock.wait(2 * event_pump.IDLE_S)
    assert collected == ["collected"]


async def test_views_that_left_the_page_are_freed(monkeypatch: pytest.MonkeyPatch, only_asked_for: None):
    monkeypatch.setattr(event_pump, "IDLE_S", 0.2)
    async with driving() as d:
        await opened(d, 160)
        await still(d)
        transcript = d.view.transcript
        left = weakref.ref(transcript.views[-1])
        for _ in range(10):  # what still refers to a view as it is removed is gone when the next ones are
            transcript.scroll_home(animate=False)
            await still(d)
            transcript.scroll_end(animate=False)
            await still(d)
            assert left() not in transcript.views, "the newest messages were not removed"
            await asyncio.sleep(2 * event_pump.IDLE_S)
            if left() is None:
                return
    raise AssertionError(f"{left()} is still there")


async def test_what_replies_leave_behind_does_not_grow_with_their_number(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(mounted_page, "KEPT_LINES", 20)
    monkeypatch.setattr(mounted_page, "SLACK_LINES", 5)
    monkeypatch.setattr(event_pump, "IDLE_S", 0.1)
    async with driving((80, 16)) as d:
        alive: list[int] = []
        for number in range(9):
            await d.say("Go on.")
            await d.reply(f"Again, for the {number + 1}th time.\n\n- one\n- two\n\nThat is **all**.\n")
            if number % 3 == 2:
                await d.settle()
                await asyncio.sleep(2 * event_pump.IDLE_S)
                gc.collect()
                alive.append(sum(issubclass(type(thing), Widget | Strip) for thing in gc.get_objects()))
        assert alive[2] <= alive[1] * 1.25, f"{alive}: with nothing released it would be 1.5 times as many"
        first, *_, last = (turn.reply for turn in d.app.chat.turns if turn.reply is not None)
        assert last._pieces
        assert not first._pieces
        assert "".join(text for text, _ in first.pieces) == first.text


def pending() -> list[Any]:
    """Timers of the event loop that would still fire."""
    timers: list[Any] = getattr(asyncio.get_running_loop(), "_scheduled")  # noqa: B009
    return [timer for timer in timers if not timer.cancelled() and "GarbageCollection" in repr(timer)]
