"""Measures whether the open app slows the engine down: the same replies with and without it, alternately."""

from __future__ import annotations

import asyncio
import os
import statistics
from collections.abc import Callable
from pathlib import Path
from tempfile import gettempdir
from typing import Any

from specchat.engine.client.client import Engine
from specchat.engine.protocol import events as ev
from specchat.engine.protocol.commands import Generate, Load, Message
from specchat.tui.app import SpecchatApp
from specchat.tui.control.app_setup import AppSetup

PROMPT = "Write a long story about a lighthouse keeper who finds a message in a bottle."
REPLIES = 3


def settings_of(settings: dict[str, Any]) -> dict[str, Any]:
    """Plain, greedy and of a fixed length: every reply is the same one, and no drafter remembers the one before."""
    return {"controller": "off", "temperature": 0.0, "seed": 0, "max_tokens": 200, **settings}


def alone(settings: dict[str, Any]) -> dict[str, Any]:
    """The engine without the app; tokens per second of each reply."""
    engine = Engine(_log("alone"))
    engine.send(Load(settings_of(settings)))
    speeds: list[float] = []
    for event in engine.events():
        match event:
            case ev.Failed() | ev.Died():
                break
            case ev.Finished():
                speeds.append(event.stats.tokens_per_s)
        if isinstance(event, ev.Ready | ev.Finished):
            if len(speeds) == REPLIES:
                break
            engine.send(Generate(len(speeds) + 1, [Message("user", PROMPT)]))
    engine.close()
    return {"speeds": speeds}


def with_app(settings: dict[str, Any]) -> dict[str, Any]:
    """The engine with the app open in this terminal; tokens per second of each reply, and what the app took."""
    engines: list[Engine] = []
    result: dict[str, Any] = {"speeds": [], "shares": []}

    def start(wake: Callable[[], None]) -> Engine:
        engines.append(Engine(_log("app"), wake=wake))
        return engines[-1]

    app = SpecchatApp(AppSetup(start), settings=settings_of(settings))

    async def pilot(_: object) -> None:
        while app.chat.engine.phase not in ("ready", "failed", "dead"):
            await asyncio.sleep(0.05)
        for _ in range(REPLIES if app.chat.engine.phase == "ready" else 0):
            await app.control.current_chat.new()
            clock, cpu = asyncio.get_running_loop().time(), os.times()
            await app.control.session.ask(PROMPT)
            while app.chat.running is not None:
                await asyncio.sleep(0.05)
            seconds, now = asyncio.get_running_loop().time() - clock, os.times()
            result["shares"].append((now.user + now.system - cpu.user - cpu.system) / seconds)
            if app.chat.figures and app.chat.figures.stats:
                result["speeds"].append(app.chat.figures.stats.tokens_per_s)
        app.exit()

    app.run(auto_pilot=pilot)
    for engine in engines:
        engine.close()
    return result


def ratio(pairs: list[tuple[dict[str, Any], dict[str, Any]]]) -> float:
    """The speed with the app over that without, pair by pair; their median."""
    return float(statistics.median(_ratios(pairs)))


def _ratios(pairs: list[tuple[dict[str, Any], dict[str, Any]]]) -> list[float]:
    return [
        statistics.median(app["speeds"]) / statistics.median(alone["speeds"])
        for alone, app in pairs
        if app["speeds"] and alone["speeds"]
    ]


def _log(name: str) -> Path:
    return Path(gettempdir()) / f"specchat-bench-{os.getpid()}-{name}.log"
