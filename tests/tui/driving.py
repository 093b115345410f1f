"""Run the app on a scripted engine inside a test."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import fields
from typing import Any
from weakref import WeakSet

from fake import FakeLink, hello, ready, rounds_of, started, stats_of
from textual import events
from textual.pilot import Pilot
from textual.screen import Screen

from specchat.engine.protocol import events as ev
from specchat.engine.protocol.commands import Generate
from specchat.tui.app import SpecchatApp
from specchat.tui.screens.chat_screen import ChatScreen
from specchat.tui.services.context import AppSetup
from specchat.tui.services.engine_session import LinkFactory
from specchat.tui.state.pair_list import PairInfo
from specchat.tui.widgets.painted_lines import PaintedLines

PATIENCE_S = 20.0
PAIRS = [
    PairInfo("smol", "SmolLM2-360M-Instruct", "SmolLM2-135M", summary="small and quick, fits anywhere"),
    PairInfo("smol-1.7b", "SmolLM2-1.7B-Instruct", "SmolLM2-135M", "missing", 3_420_000_000, "better answers"),
    PairInfo("qwen", "Qwen3-0.6B", None, "partial", 400_000_000, "no draft model fits it"),
]


paint = Screen._compositor_refresh
"""Textual's own: draw what changed."""

painted: WeakSet[Screen[Any]] = WeakSet()
unpainted: WeakSet[Screen[Any]] = WeakSet()


def paint_later(self: Screen[Any]) -> None:
    """Draw a screen when it is pushed, and else when the app has come to rest (`Driver.settle`).

    Instead of `Screen._compositor_refresh`, which took a third of the tests' time. `Driver.screen` draws on its own.
    """
    pushed = self not in painted and self.app._dom_ready
    painted.add(self)
    if self is not self.app.screen or pushed:
        paint(self)
    else:
        unpainted.add(self)
        self._dirty_widgets.clear()
        self.app._update_mouse_over(self)


class Driver:
    """The app, its keys, and the engine's side."""

    def __init__(self, app: SpecchatApp, pilot: Pilot[None], links: list[FakeLink]) -> None:
        self.app = app
        self.pilot = pilot
        self.links = links

    @property
    def view(self) -> ChatScreen:
        return self.app.chat_screen

    @property
    def link(self) -> FakeLink:
        return self.links[-1]

    def generates(self) -> list[Generate]:
        """Every reply that was asked for."""
        return [command for command in self.link.sent if isinstance(command, Generate)]

    async def hear(self, *events: ev.Event) -> None:
        """The engine says something; wait until it is on the screen."""
        self.link.put(*events)
        await self.settle()

    async def settle(self) -> None:
        """Wait until nothing is left to apply or to draw."""
        end = time.monotonic() + PATIENCE_S
        await self.pilot.pause(0.02)
        while self.link.waiting or not self.app.context.pump.idle:
            assert time.monotonic() < end, "the app does not come to rest"
            await self.pilot.pause(0.02)
        await self.pilot.pause()
        if (screen := self.app.screen) in unpainted:
            unpainted.discard(screen)
            paint(screen)

    async def until(self, text: str, patience_s: float = PATIENCE_S) -> str:
        """Wait until the screen shows this, whatever box breaks its lines; returns the screen as it is then."""
        end = time.monotonic() + patience_s
        while text not in " ".join((screen := self.screen()).replace("│", " ").split()):
            assert time.monotonic() < end, f"waited for {text!r} and saw:\n{screen}"
            await self.pilot.pause(0.02)
        return screen

    async def say(self, text: str) -> None:
        """The user writes and sends."""
        self.app.chat_screen.prompt.write(text)
        await self.pilot.press("enter")
        await self.pilot.pause()

    async def burst(self, *keys: str) -> None:
        """Keys that arrive all at once, as those of a fast hand do at a busy app."""
        for key in keys:
            self.app.post_message(events.Key(key, key if len(key) == 1 else {"slash": "/", "space": " "}.get(key)))
        await self.settle()

    async def reply(self, text: str | None = None, upto: int | None = None, finish: bool = True) -> list[ev.RoundDone]:
        """The engine answers the last Generate with rounds."""
        generate = self.link.last(Generate)
        rounds = rounds_of(id=generate.id) if text is None else rounds_of(text, id=generate.id)
        await self.hear(started(generate.messages, generate.id), *rounds[:upto])
        if finish:
            await self.hear(ev.Finished(generate.id, "end", "", stats_of(rounds), 9.0))
        return rounds

    def drawn(self, widget: PaintedLines) -> str:
        """What a hand-drawn widget shows, as text."""
        size = widget.size
        return "\n".join(widget.render_line(y).text.rstrip() for y in range(size.height))

    def screen(self) -> str:
        """The whole screen as text."""
        return "\n".join(strip.text.rstrip() for strip in self.app.screen._compositor.render_strips())

    async def begin_again(self) -> None:
        """Close what is open, end the reply that is being written, and begin an empty chat."""
        if (running := self.app.chat.running) is not None:
            await self.hear(ev.Finished(running.id, "cancelled", "", stats_of([]), 1.0))
        while len(self.app.screen_stack) > 1:
            self.app.pop_screen()
        self.app.chat_screen.prompt.clear()
        self.app.chat_screen.prompt.focus()
        await self.pilot.press("ctrl+n")
        await self.settle()


async def in_one_app(*tests: Callable[[Driver], Awaitable[None]], **options: Any) -> None:
    """Run tests one after another in one app, each in an empty chat: to start an app takes longer than most of them."""
    async with driving(**options) as d:
        for test in tests:
            await test(d)
            await d.begin_again()


def app_with(connect: LinkFactory, **options: Any) -> SpecchatApp:
    """The app; options are fields of `AppSetup` and arguments of `SpecchatApp`."""
    given = {field.name: options.pop(field.name) for field in fields(AppSetup) if field.name in options}
    return SpecchatApp(AppSetup(connect, **given), **options)


@asynccontextmanager
async def driving(size: tuple[int, int] = (120, 40), loaded: bool = True, **options: Any) -> AsyncIterator[Driver]:
    """The app at a size, with a pair loaded unless told otherwise."""
    links: list[FakeLink] = []

    def connect(wake: Any) -> FakeLink:
        links.append(FakeLink(wake))
        return links[-1]

    options = {"settings": {"pair": "smol"}, "pairs": PAIRS, "engine_here": False} | options
    app = app_with(connect, **options)
    app.animation_level = "none"
    async with app.run_test(size=size) as pilot:
        driver = await connected(pilot, links)
        if loaded:
            await driver.hear(hello(), ready())
        yield driver


async def wait_for(pilot: Pilot[None], condition: Callable[[], object]) -> None:
    """Wait until something is so; fails where it never is."""
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        await pilot.pause(0.02)


async def connected(pilot: Pilot[None], links: list[FakeLink]) -> Driver:
    """The app once it has its engine: on a busy machine the first paint takes its time."""
    await pilot.pause()
    await wait_for(pilot, lambda: links)
    return Driver(pilot.app, pilot, links)


async def writing(d: Driver, rounds: int = 4) -> list[ev.RoundDone]:
    """A reply of which some rounds have been written; the keys of the chat are at hand."""
    await d.say("How does it work?")
    made = await d.reply(upto=rounds, finish=False)
    await d.pilot.press("tab")
    return made


async def telling(d: Driver, round: ev.RoundDone) -> None:
    """The engine does one more round, which is told slowly."""
    d.link.put(round)
    await wait_for(d.pilot, lambda: d.view.animation.round is round)
    d.view.animation.timer.pause()  # the test turns the pages itself
