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
