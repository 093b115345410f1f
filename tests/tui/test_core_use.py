"""The cores that engine and app use: measured, shown, and left to an engine that needs them all."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from fake import ready

from specchat.tui.state.stats_lines import StatsFacts, stats_lines
from specchat.tui.system.processes import CoreShares, CpuMeter, wants_every_core


def test_the_panel_says_who_uses_the_cores():
    lines = stats_lines(StatsFacts(shares=CoreShares(engine=1.93, app=0.061)), 40, 14)
    assert "".join(text for text, _ in lines[0]) == "cores    engine 1.9 · app 0.06"


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processor times of others are read from /proc")
def test_the_shares_of_an_engine_here_are_measured_and_of_one_elsewhere_are_unknown(monkeypatch):
    monkeypatch.setattr("specchat.tui.system.processes.SPAN_S", 0.0)
    meter = CpuMeter()
    assert meter.read(0) is None
    assert meter.read(os.getpid()) is None
    sum(range(2_000_000))
    shares = meter.read(os.getpid())
    assert shares is not None
    assert shares.app > 0
    assert meter.read(0) is None


def test_an_engine_that_leaves_a_core_is_not_given_way_to(monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    assert wants_every_core(ready(threads=4))
    assert not wants_every_core(ready(threads=3))
    assert not wants_every_core(ready(threads=4, device="cuda"))


@pytest.mark.skipif(sys.platform != "linux", reason="niceness belongs to threads on Linux alone")
def test_what_is_started_after_giving_way_is_not_nice_itself():
    code = (
        "import asyncio, os\n"
        "from specchat.tui.system.processes import EnginePriority\n"
        "async def main():\n"
        "    before, priority = os.nice(0), EnginePriority()\n"
        "    priority.lower_priority(); priority.lower_priority()\n"
        "    print(os.nice(0) - before, await priority.start(lambda: os.nice(0)) - before)\n"
        "asyncio.run(main())\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout.split() == ["5", "0"]
