"""The cost of the app on this machine against its budgets."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from specchat.errors import SpecchatError
from specchat.tui.bench.engine_speed import ratio
from specchat.tui.bench.scripted_engine import TEXTS
from specchat.tui.bench.terminal import Size, Terminal, measured, measured_engine

RATE = 100.0
WIDE, SMALL = (120, 40), (80, 24)
STARTS = 5
FAST = 4_000.0
"""Tokens per second when only memory is measured."""


@dataclass(frozen=True)
class BudgetFinding:
    """One figure against its budget; `unit` is s, cores, bytes or a word."""

    name: str
    value: float
    budget: float | None
    unit: str

    @property
    def within_budget(self) -> bool | None:
        """Whether the value is within its budget; None without one."""
        return None if self.budget is None else self.value <= self.budget


Report = Callable[[str], None]


def findings(report: Report, seconds: float = 8.0, memory: bool = True) -> Iterator[BudgetFinding]:
    """Measure everything, one scenario after another, each in a process and a terminal of its own."""
    report("first paint")
    yield from first_paint()
    for size in (WIDE, SMALL):
        for text in TEXTS:
            report(f"streaming {text} at {_named(size)}")
            yield from streaming(size, text, seconds)
    report("idle")
    result = _run(WIDE, "idle", tokens=200, seconds=seconds)
    yield BudgetFinding("idle: processor", result["cpu"], 0.005, "cores")
    yield BudgetFinding("idle: timers", result["timers"], 0, "timers")
    yield BudgetFinding("idle: to the terminal", result["bytes_per_s"], 0, "bytes/s")
    report("the tree")
    result = _run(WIDE, "tree")
    yield BudgetFinding("a frame of the tree, median", result["frame_s"], 0.004, "s")
    yield BudgetFinding("a frame of the tree, 95 %", result["frame_p95_s"], 0.004, "s")
    report("a chat of ten thousand messages")
    result = _run(WIDE, "scroll")
    yield BudgetFinding("10 000 messages: open", result["open_s"], 1.0, "s")
    yield BudgetFinding("10 000 messages: scrolling, a frame, 95 %", result["frame_s"], 0.05, "s")
    yield BudgetFinding("10 000 messages: a page up, mean", result["page_s"], None, "s")
    report("a reply of twenty thousand tokens")
    result = _run(WIDE, "stream", tokens=26_000, ahead=20_000, seconds=seconds)
    yield BudgetFinding("after 20 000 tokens: processor", result["cpu"], 0.25, "cores")
    yield BudgetFinding("after 20 000 tokens: lag, 95 %", result["lag_p95_s"], 0.02, "s")
    if memory:
        report("ten minutes of streaming, played faster")
        result = _run(WIDE, "memory", tokens=600, rate=FAST)
        yield BudgetFinding("an hour: more memory", result["growth_bytes"], 64e6, "bytes")
        yield BudgetFinding("an hour: of it text", result["text_bytes"], None, "bytes")


def engine_with_app(report: Report, settings: dict[str, Any], pairs: int = 5) -> Iterator[BudgetFinding]:
    """The cost of the open app for the engine; the order alternates."""
    found = []
    for number in range(pairs):
        report(f"a real engine with and without the app, {number + 1} of {pairs}")
        order = (False, True) if number % 2 == 0 else (True, False)
        results = {app: measured_engine(WIDE, app, settings) for app in order}
        found.append((results[False], results[True]))
    if not all(alone["speeds"] and app["speeds"] for alone, app in found):
        raise SpecchatError("the engine wrote no reply; `specchat doctor` says which pairs are ready")
    yield BudgetFinding("the engine: time with the app over without", 1 / ratio(found), 1 / 0.95, "×")
    speeds = [statistics.median(speed for run in found for speed in run[side]["speeds"]) for side in (0, 1)]
    yield BudgetFinding("the engine without the app", speeds[0], None, "tok/s")
    yield BudgetFinding("the engine with the app", speeds[1], None, "tok/s")
    shares = [share for _, app in found for share in app["shares"]]
    yield BudgetFinding("the app beside the engine: processor", statistics.median(shares), 0.25, "cores")


def first_paint() -> Iterator[BudgetFinding]:
    """From starting Python to the prompt on the screen, the engine starting behind it."""
    walls, cpus, bare = [], [], []
    cached = {"PYTHONDONTWRITEBYTECODE": ""}  # as in an installation, modules are compiled once
    for number in range(STARTS + 1):
        code = "from specchat.cli import main; import sys; sys.argv = ['specchat', '--pair', 'scripted']; main()"
        terminal = Terminal([sys.executable, "-c", code], WIDE, cached)
        wall, cpu = terminal.wait_for("Say"), terminal.cpu_s()
        if number:
            walls.append(wall)
            cpus.append(cpu)
        terminal.type("\x03\x03")
        terminal.wait_for_exit(20)
        empty = Terminal([sys.executable, "-c", "print('Say')"], WIDE)
        bare.append(empty.wait_for("Say"))
        empty.wait_for_exit(5)
    yield BudgetFinding(
        "first paint, after Python has started", statistics.median(walls) - statistics.median(bare), 0.5, "s"
    )
    yield BudgetFinding("first paint, processor time", statistics.median(cpus), None, "s")


def streaming(size: Size, text: str, seconds: float) -> Iterator[BudgetFinding]:
    """One kind of text at one size."""
    result = _run(size, "stream", text=text, tokens=round((seconds + 30) * RATE), seconds=seconds)
    where = f"{_named(size)}, {text}"
    yield BudgetFinding(f"{where}: processor", result["cpu"], 0.25, "cores")
    yield BudgetFinding(f"{where}: lag, 95 %", result["lag_p95_s"], 0.02, "s")
    yield BudgetFinding(f"{where}: lag, longest", result["lag_max_s"], None, "s")
    yield BudgetFinding(f"{where}: to the terminal", result["bytes_per_s"], None, "bytes/s")


def _run(size: Size, scenario: str, **more: Any) -> dict[str, Any]:
    options: dict[str, Any] = {"text": "prose", "tokens": 300, "rate": RATE, "seconds": 5.0}
    return measured(size, scenario=scenario, **(options | more))


def _named(size: Size) -> str:
    return f"{size[0]}×{size[1]}"
