"""What left the screen is freed, once nothing moves; until then nobody searches memory for it."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import Any

import pytest
from driving import driving
from test_long_chats import opened

from specchat.tui import tidying
from specchat.tui.tidying import Tidying


@pytest.fixture
def collected(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """One entry for each collection of everything that was asked for."""
    done: list[str] = []
    monkeypatch.setattr(tidying, "REST_S", 0.02)
    monkeypatch.setattr(gc, "collect", lambda *_: done.append("collected"))
    return done


async def test_what_was_left_behind_is_collected_once(collected: list[str]):
    tidy = Tidying(lambda: True)
    for _ in range(5):
        tidy.soon()
        await asyncio.sleep(0.01)
    assert not collected
    await asyncio.sleep(0.1)
    assert collected == ["collected"]
    assert not pending()


async def test_nothing_is_collected_while_something_moves(collected: list[str]):
    moving = True
    tidy = Tidying(lambda: not moving)
    tidy.soon()
    await asyncio.sleep(0.1)
    assert not collected
    moving = False
    await asyncio.sleep(0.1)
    assert collected == ["collected"]


async def test_views_that_left_the_page_are_freed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tidying, "REST_S", 0.02)
    async with driving() as d:
        await opened(d, 160)
        page = d.app.transcript
        left = weakref.ref(page.views[-1])
        page.scroll_home(animate=False)
        for _ in range(60):
            await d.settle()
            await asyncio.sleep(0.02)
            if left() is None:
                return
    raise AssertionError(f"{left()} is still there")


def pending() -> list[Any]:
    """Timers of the event loop that would still fire."""
    timers: list[Any] = getattr(asyncio.get_running_loop(), "_scheduled")  # noqa: B009
    return [timer for timer in timers if not timer.cancelled() and "Tidying" in repr(timer)]
