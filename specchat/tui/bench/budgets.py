"""The cost of the app on this machine against its budgets."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specchat.errors import SpecchatError
from specchat.tui.bench.scenarios import RATE, ratio
from specchat.tui.bench.scripted_engine import TEXTS
from specchat.tui.system.processes import spent_s

Size = tuple[int, int]
_PATIENCE_S = 300.0


class Terminal:
    """One program in a pseudo-terminal of a size; everything it writes is read and counted at once."""

    def __init__(self, command: Sequence[str], size: Size, environment: Mapping[str, str] = {}) -> None:
        ours, theirs = pty.openpty()
        columns, lines = size
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.begun = time.monotonic()
        self.process = subprocess.Popen(
            command, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
            env={**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor", **environment},
        )  # fmt: skip
        os.close(theirs)
        self._screen = ours
        self.written: list[tuple[float, int]] = []  # when, and how many bytes
        self.seen = b""

    def read(self, seconds: float) -> bytes:
        """What arrives within that time; empty at the end of the program."""
        if not select.select([self._screen], [], [], seconds)[0]:
            return b""
        try:
            data = os.read(self._screen, 65536)
        except OSError:
            return b""
        self.written.append((time.monotonic(), len(data)))
        self.seen = (self.seen + data)[-65536:]
        return data

    def type(self, keys: str) -> None:
        os.write(self._screen, keys.encode())

    def wait_for(self, words: str, patience_s: float = 60.0) -> float:
        """Seconds from the start until these words were written; infinity if they never were."""
        end = time.monotonic() + patience_s
        while time.monotonic() < end and (self.process.poll() is None or self.read(0)):
            self.read(0.05)
            if words.encode() in self.seen:
                return time.monotonic() - self.begun
        return float("inf")

    def wait_for_exit(self, patience_s: float) -> bool:
        """Read on until the program has left; False, and it is killed, if it does not."""
        end = time.monotonic() + patience_s
        while self.process.poll() is None and time.monotonic() < end:
            self.read(0.1)
        gone = self.process.poll() is not None
        self.close()
        return gone

    def cpu_s(self) -> float:
        """Processor seconds the program has used so far, all of its threads together; 0 where unknown."""
        return spent_s(self.process.pid) or 0.0

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._screen)


def measured(size: Size, **scenario: Any) -> dict[str, Any]:
    """Run one scenario of `scenarios` in a process and terminal of its own; its result, with bytes per second."""
    result, terminal = _run_in_terminal(size, "run", scenario)
    if "window" in result:
        begun, ended = result["window"]
        result["bytes_per_s"] = sum(count for at, count in terminal.written if begun <= at < ended) / (ended - begun)
    return result


def _run_in_terminal(size: Size, function: str, values: dict[str, Any]) -> tuple[dict[str, Any], Terminal]:
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "result.json"
        code = f"from specchat.tui.bench.scenarios import {function}; {function}({str(target)!r}, **{values!r})"
        terminal = Terminal([sys.executable, "-c", code], size)
        gone = terminal.wait_for_exit(_PATIENCE_S)
        if not gone or not target.exists():
            raise SpecchatError(f"the app did not get through this scenario in {_PATIENCE_S:.0f} s: {values}")
        return json.loads(target.read_text(encoding="utf-8")), terminal


WIDE, SMALL = (120, 40), (80, 24)
STARTS = PAIRS = 5
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
    result = measured(WIDE, scenario="idle", tokens=200, seconds=seconds)
    yield BudgetFinding("idle: processor", result["cpu"], 0.005, "cores")
    yield BudgetFinding("idle: timers", result["timers"], 0, "timers")
    yield BudgetFinding("idle: to the terminal", result["bytes_per_s"], 0, "bytes/s")
    report("the tree")
    result = measured(WIDE, scenario="tree")
    yield BudgetFinding("a frame of the tree, median", result["frame_s"], 0.004, "s")
    yield BudgetFinding("a frame of the tree, 95 %", result["frame_p95_s"], 0.004, "s")
    report("a chat of ten thousand messages")
    result = measured(WIDE, scenario="scroll")
    yield BudgetFinding("10 000 messages: open", result["open_s"], 1.0, "s")
    yield BudgetFinding("10 000 messages: scrolling, a frame, 95 %", result["frame_s"], 0.05, "s")
    yield BudgetFinding("10 000 messages: a page up, mean", result["page_s"], None, "s")
    report("a reply of twenty thousand tokens")
    result = measured(WIDE, scenario="stream", tokens=26_000, ahead=20_000, seconds=seconds)
    yield BudgetFinding("after 20 000 tokens: processor", result["cpu"], 0.25, "cores")
    yield BudgetFinding("after 20 000 tokens: lag, 95 %", result["lag_p95_s"], 0.02, "s")
    if memory:
        report("ten minutes of streaming, played faster")
        result = measured(WIDE, scenario="memory", tokens=600, rate=FAST)
        yield BudgetFinding("an hour: more memory", result["growth_bytes"], 64e6, "bytes")
        yield BudgetFinding("an hour: of it text", result["text_bytes"], None, "bytes")


def engine_with_app(report: Report, settings: dict[str, Any]) -> Iterator[BudgetFinding]:
    """The cost of the open app for the engine; the order alternates."""
    found = []
    for number in range(PAIRS):
        report(f"a real engine with and without the app, {number + 1} of {PAIRS}")
        order = (False, True) if number % 2 == 0 else (True, False)
        given = [{"app": app, "settings": settings} for app in order]
        results = {one["app"]: _run_in_terminal(WIDE, "run_engine", one)[0] for one in given}
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
        wall, cpu = terminal.wait_for("something"), terminal.cpu_s()  # "Say" is cut by the cursor
        if number:
            walls.append(wall)
            cpus.append(cpu)
        terminal.type("\x03\x03")
        terminal.wait_for_exit(20)
        empty = Terminal([sys.executable, "-c", "print('something')"], WIDE)
        bare.append(empty.wait_for("something"))
        empty.wait_for_exit(5)
    took_s = statistics.median(walls) - statistics.median(bare)
    yield BudgetFinding("first paint, after Python has started", took_s, 0.5, "s")
    yield BudgetFinding("first paint, processor time", statistics.median(cpus), None, "s")


def streaming(size: Size, text: str, seconds: float) -> Iterator[BudgetFinding]:
    result = measured(size, scenario="stream", text=text, tokens=round((seconds + 30) * RATE), seconds=seconds)
    where = f"{_named(size)}, {text}"
    yield BudgetFinding(f"{where}: processor", result["cpu"], 0.25, "cores")
    yield BudgetFinding(f"{where}: lag, 95 %", result["lag_p95_s"], 0.02, "s")
    yield BudgetFinding(f"{where}: lag, longest", result["lag_max_s"], None, "s")
    yield BudgetFinding(f"{where}: to the terminal", result["bytes_per_s"], None, "bytes/s")


def _named(size: Size) -> str:
    return f"{size[0]}×{size[1]}"
