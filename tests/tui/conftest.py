"""What tests of the app share: an app that draws at once, without the rests it takes for others, and some fixtures."""

import asyncio
import gc
import inspect
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType, MethodType
from typing import Any

import pytest
import textual
import textual._callback
import textual._wait
import textual.app
import textual.pilot
from driving import paint_later
from parsed_styles import parse_once
from textual.css.model import RuleSet
from textual.css.stylesheet import Stylesheet
from textual.message_pump import MessagePump
from textual.pilot import Pilot, WaitForScreenTimeout
from textual.screen import Screen

from specchat.tui import textual_patches
from specchat.tui.screens import chat_view as screen_update
from specchat.tui.services import event_pump

IDLE_S = textual._wait.SLEEP_GRANULARITY / 2
"""An app that computes for less of each 20 ms is idle. (Textual's own bound, 1 ms, is passed by a spinner, and each
key that a test presses then takes a second; 10 ms stood in its earlier versions.)"""

MANY_CALLBACKS = 10_000
"""Turns of the event loop after which it is no longer waited for: something in it never rests."""

WAITS = {
    event_pump: ("FRAME_S", "SHARED_FRAME_S", "REST_FACTOR", "SHARED_REST_FACTOR"),
    screen_update: ("TREE_S", "FIGURES_S"),
}


THREADS_S = 1.0
"""How long what the app does in threads is waited for; some tests hold it."""

in_threads: set[object] = set()
"""What the app does in threads."""

_to_thread = asyncio.to_thread


async def noted_thread(function: Callable[..., Any], /, *args: Any, **named: Any) -> Any:
    """Instead of `asyncio.to_thread`."""
    in_threads.add(work := object())
    try:
        return await _to_thread(function, *args, **named)
    finally:
        in_threads.discard(work)


async def wait_until_nothing_is_ready(min_sleep: float = textual._wait.SLEEP_GRANULARITY, max_sleep: float = 1) -> None:
    """Textual's wait for an idle process, and then for an app without work in threads and callbacks that are ready.

    A process that gets no processor time on a busy machine looks idle in the middle of its work.
    """
    await textual._wait.wait_for_idle(min_sleep, max_sleep)
    ready = getattr(asyncio.get_running_loop(), "_ready")  # noqa: B009
    end = time.monotonic() + THREADS_S
    for _ in range(MANY_CALLBACKS):
        if ready:
            await asyncio.sleep(0)
        elif in_threads and time.monotonic() < end:
            await asyncio.sleep(textual._wait.SLEEP_IDLE)
        else:
            return


def is_at_rest(pump: MessagePump) -> bool:
    """Whether it has handled every message and waits for the next one."""
    queue = pump._message_queue
    return queue.empty() and bool(queue.ready_event._waiters)


async def wait_for_screen(self: Pilot[Any], timeout: float = 30.0) -> bool:
    """Wait until what was sent to the app and its widgets is handled; False after an error that ends the app.

    Instead of `Pilot._wait_for_screen`, which sends one message more to each of them: a third of the tests' time.
    """
    if not self.app.screen_stack:
        return False
    at_work, all_heard = set(), asyncio.Event()

    def heard(pump: MessagePump) -> None:
        at_work.discard(pump)
        if not at_work:
            all_heard.set()

    for pump in (self.app, *self.app.screen.walk_children(with_self=True)):
        if not is_at_rest(pump) and pump.call_later(heard, pump):
            at_work.add(pump)
    if at_work:
        waits = [asyncio.create_task(event.wait()) for event in (all_heard, self.app._exception_event)]
        done, _ = await asyncio.wait(waits, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        if not done:
            raise WaitForScreenTimeout(f"{at_work} do not come to rest")
    return not at_work


_by_signature = textual._callback._count_parameters


def count_parameters(function: Callable[..., Any]) -> int:
    """What Textual's own returns, by the code of plain functions: signatures took 2 % of a test's time."""
    bound = isinstance(function, MethodType)
    plain = function.__func__ if bound else function
    if not isinstance(plain, FunctionType) or plain.__dict__.keys() - {"_param_count"}:  # a wrapper has another's
        return _by_signature(function)
    code = plain.__code__
    if bound and not code.co_argcount:
        return _by_signature(function)
    more = bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    return code.co_argcount + code.co_kwonlyargcount + more - bound


@pytest.fixture(autouse=True)
def without_rests(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    for module, names in WAITS.items():
        for name in names:
            monkeypatch.setattr(module, name, getattr(module, name) / 20)
    monkeypatch.setattr(textual._wait, "SLEEP_IDLE", IDLE_S)
    for module in (textual.app, textual.pilot):
        monkeypatch.setattr(module, "wait_for_idle", wait_until_nothing_is_ready)
    monkeypatch.setattr(Pilot, "_wait_for_screen", wait_for_screen)
    monkeypatch.setattr(asyncio, "to_thread", noted_thread)
    in_threads.clear()
    if not {"drawing_at_once", "snap_compare"} & set(request.fixturenames):
        monkeypatch.setattr(Screen, "_compositor_refresh", paint_later)
    monkeypatch.setattr(textual._callback, "_count_parameters", count_parameters)
    monkeypatch.setattr(Stylesheet, "_parse_rules", parse_once)
    monkeypatch.setattr(RuleSet, "__hash__", object.__hash__)  # what Textual's own returns, without a call
    monkeypatch.setattr(event_pump, "IDLE_S", 60.0)  # all that pytest holds is looked through: 0.1 s for most tests
    monkeypatch.setattr(gc, "set_threshold", lambda *_: None)  # what one test leaves must not stay for the next


@pytest.fixture
def drawing_at_once() -> None:
    """The app draws every change when it happens; else only when it comes to rest."""


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "chats.db"


@pytest.fixture
def newer_textual(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A version of Textual whose private parts are not known."""
    monkeypatch.setattr(textual, "__version__", "8.99.0")
    textual_patches.tested.cache_clear()
    yield
    textual_patches.tested.cache_clear()
