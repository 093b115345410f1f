"""The scenarios of the app benchmark, run in a child process: the real app in a pseudo-terminal."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import statistics
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from tempfile import gettempdir
from typing import Any

from textual.pilot import Pilot

from specchat.engine.client.client import Engine
from specchat.engine.protocol import events as ev
from specchat.engine.protocol.commands import Generate, Load, Message
from specchat.tui.app import SpecchatApp
from specchat.tui.bench.scripted_engine import TEXTS, ScriptedLink, rounds_of
from specchat.tui.services.context import AppSetup
from specchat.tui.state.reply_figures import Figures
from specchat.tui.state.turn import Reply, Turn

RATE = 100.0
WARM_UP_S = 2.0
SAMPLE_S = 0.02
MESSAGES = 10_000
PAGES = 60
PLAYED_TOKENS = 60_000
PLAYED_SHARE = 1 / 6
"""Ten minutes at 100 tokens a second are played, and make a sixth of an hour."""

Result = dict[str, Any]


class Scenario:
    def __init__(
        self,
        scenario: str,
        text: str = "prose",
        tokens: int = 300,
        rate: float = RATE,
        seconds: float = 5.0,
        ahead: int = 0,
    ) -> None:
        self.ahead, self.seconds, self.rate = ahead, seconds, rate
        self.links: list[ScriptedLink] = []
        self._scenario: Callable[[], Awaitable[Result]] = getattr(self, scenario)
        self.result: Result = {}

        def connect(wake: Callable[[], None]) -> ScriptedLink:
            self.links.append(ScriptedLink(wake, TEXTS[text], tokens, rate, ahead))
            return self.links[-1]

        self.app = SpecchatApp(AppSetup(connect), settings={"pair": "scripted"})

    def run(self) -> Result:
        self.app.run(auto_pilot=self._pilot)
        return self.result

    async def _pilot(self, pilot: Pilot[object]) -> None:
        while self.app.chat.engine.phase != "ready":
            await asyncio.sleep(0.02)
        self.result = await self._scenario()
        self.app.exit()

    async def stream(self) -> Result:
        await self.app.chat_screen.replies.ask("Go on.")
        while (running := self.app.chat.running) is not None and running.figures.tokens < self.ahead:
            await asyncio.sleep(0.1)
        await asyncio.sleep(WARM_UP_S)
        begun, cpu = time.monotonic(), time.process_time()
        lags = await _event_loop_lags(self.seconds)
        spent, now = time.process_time() - cpu, time.monotonic()
        lag_s = {"lag_p95_s": _quantile(lags, 0.95), "lag_max_s": max(lags)}
        return {"cpu": spent / (now - begun), **lag_s, "window": (begun, now)}

    async def idle(self) -> Result:
        await self._write_reply()
        await asyncio.sleep(1.0)
        loop = asyncio.get_running_loop()
        timers = sum(not handle.cancelled() for handle in getattr(loop, "_scheduled", []))
        begun, cpu = time.monotonic(), time.process_time()
        await asyncio.sleep(self.seconds)
        now = time.monotonic()
        return {"cpu": (time.process_time() - cpu) / (now - begun), "timers": timers, "window": (begun, now)}

    async def tree(self) -> Result:
        panel = self.app.chat_screen.tree_panel
        costs, shown = [], []
        for round in rounds_of(TEXTS["prose"], 500, self.rate, 1):
            shown.append(round)
            before = time.thread_time()
            panel.show(shown, self.app.chat.figures)
            for y in range(panel.size.height):
                panel.render_line(y)
            costs.append(time.thread_time() - before)
        return {"frame_s": statistics.median(costs), "frame_p95_s": _quantile(costs, 0.95)}

    async def scroll(self) -> Result:
        transcript = self.app.chat_screen.transcript
        turns, begun = _turns(MESSAGES), time.thread_time()
        await transcript.restore(turns)
        for _ in range(2):
            drawn = asyncio.Event()
            self.app.call_after_refresh(drawn.set)
            await drawn.wait()
        opened_s, before = time.thread_time() - begun, time.thread_time()

        async def page_up() -> None:
            for _ in range(PAGES):
                transcript.scroll_page_up(animate=False)
                await asyncio.sleep(0.1)

        lags = await _event_loop_lags(done=asyncio.create_task(page_up()).done)
        page_s = (time.thread_time() - before) / PAGES
        return {"open_s": opened_s, "frame_s": _quantile(lags, 0.95), "page_s": page_s}

    async def memory(self) -> Result:
        """The memory growth of ten minutes of streaming, played faster, extrapolated to an hour."""
        replies = PLAYED_TOKENS // self.links[0].tokens
        begun = replies // 4  # until then caches fill
        kept: list[float] = []
        for number in range(replies):
            if number == begun:
                kept.append(_resident_bytes())
            await self._write_reply()
        gc.collect()
        kept.append(_resident_bytes())
        text = sum(len(turn.message().content.encode()) for turn in self.app.chat.turns)
        an_hour = replies / (replies - begun) / PLAYED_SHARE
        return {"growth_bytes": (kept[1] - kept[0]) * an_hour, "text_bytes": text / PLAYED_SHARE}

    async def _write_reply(self) -> None:
        self.links[0].done.clear()
        await self.app.chat_screen.replies.ask("Go on.")
        while not self.links[0].done.is_set() or self.app.chat.running is not None:
            await asyncio.sleep(0.02)


async def _event_loop_lags(seconds: float = 0.0, done: Callable[[], bool] | None = None) -> list[float]:
    """How late the event loop woke up in each sample, without delays caused by other programs.

    A delay counts only up to the processor time that the app itself used meanwhile.
    """
    lags = []
    end = time.monotonic() + seconds
    while not done() if done else time.monotonic() < end:
        due, cpu = time.monotonic() + SAMPLE_S, time.thread_time()
        await asyncio.sleep(SAMPLE_S)
        lags.append(max(0.0, min(time.monotonic() - due, time.thread_time() - cpu)))
    return lags


def _quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def _resident_bytes() -> float:
    with suppress(OSError):
        pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1])
        return pages * 4096.0
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0


def _turns(count: int) -> list[Turn]:
    turns = []
    for number in range(count):
        if number % 2 == 0:
            turns.append(Turn("user", f"Question {number}: how does it go on?"))
            continue
        reply = Reply(0, Figures(), stop="end")
        code = f"```python\nreturn {number}\n```\n"
        reply.add(f"Answer {number} is **short**.\n\n- it has a list\n- of two\n\n{code}", "target")
        turns.append(Turn("assistant", reply=reply))
    return turns


def run(target: str, **options: Any) -> None:
    """Run a scenario in this process and write what was seen to a file."""
    Path(target).write_text(json.dumps(Scenario(**options).run()), encoding="utf-8")


def run_engine(target: str, app: bool, settings: dict[str, Any]) -> None:
    """Replies of a real engine, with or without the app, and write how fast they were to a file."""
    Path(target).write_text(json.dumps((with_app if app else alone)(settings)), encoding="utf-8")


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
            await app.chat_screen.current_chat.begin()
            clock, cpu = asyncio.get_running_loop().time(), os.times()
            await app.chat_screen.replies.ask(PROMPT)
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
    median = statistics.median
    both = [(alone["speeds"], app["speeds"]) for alone, app in pairs if app["speeds"] and alone["speeds"]]
    return float(median(median(app) / median(alone) for alone, app in both))


def _log(name: str) -> Path:
    return Path(gettempdir()) / f"specchat-bench-{os.getpid()}-{name}.log"
