"""Timers for the device and for the host."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch

from specchat.core.device_copy import synchronize
from specchat.decoding.speculate import Speculator

_CALLS: dict[str, dict[str, str]] = {
    "controller": {"plan": "plan", "observe": "observe"},
    "policy": {"grow": "draft"},
    "target": {"read": "verify", "keep": "keep"},
    "rule": {"judge": "judge"},
    "drafter": {"observe": "observe"},
}
"""Part → its calls → what each of them is called in a round."""

WAIT = "wait"
"""Time the host spends waiting for the device after it has handed over a pass."""

HOST_PARTS = ("plan", "draft", "verify", "judge", "keep", "observe")


def best_s(run: Callable[[], object], device: torch.device, times: int, warm: int = 2) -> float:
    """The fewest seconds that `run` takes on the device: by its own events where it has them."""
    for _ in range(warm):
        run()
    synchronize(device)
    return min(_timed(run, device) for _ in range(times))


def busy_s(run: Callable[[], object], device: torch.device) -> float | None:
    """Seconds during which the device did something while `run` ran; None where nothing could be recorded."""
    if device.type != "cuda":
        return None
    from torch.profiler import ProfilerActivity, profile

    try:
        with profile(activities=[ProfilerActivity.CUDA]) as profiler:
            run()
            synchronize(device)
    except RuntimeError:  # some machines allow no recording of kernels
        return None
    events = [event for event in profiler.events() or () if event.device_type.name == "CUDA"]
    spans = [(event.time_range.start, event.time_range.end) for event in events]
    return covered(spans) / 1e6 if spans else None


def covered(spans: Iterable[tuple[float, float]]) -> float:
    """The length that spans cover together, what overlaps counted once."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


class HostClock:
    """What calls within a round take on the host."""

    def __init__(self) -> None:
        self._calls: dict[tuple[str, str], list[float]] = defaultdict(list)

    @property
    def medians(self) -> dict[str, float]:
        """Part → seconds in a typical round. What happens once, such as capturing a graph, does not count."""
        found: dict[str, float] = defaultdict(float)
        for (_, part), seconds in self._calls.items():
            found[part] += statistics.median(seconds)
        return dict(found)

    def on(self, speculator: Speculator, device: torch.device) -> Speculator:
        """The same speculator with its calls timed. The target's pass is waited for, so that judging is not."""
        parts: dict[str, Any] = {name: getattr(speculator, name) for name in _CALLS}
        timed: dict[str, Any] = {
            name: _Timed(part, name, self, device if name == "target" else None) for name, part in parts.items()
        }
        return replace(speculator, **timed)

    def add(self, owner: str, part: str, began: float) -> None:
        self._calls[owner, part].append(time.perf_counter() - began)


class _Timed:
    """A part of a round whose calls are timed; everything else is the part's own."""

    def __init__(self, part: Any, owner: str, clock: HostClock, waited_for: torch.device | None) -> None:
        self._part = part
        self._owner = owner
        self._calls = _CALLS[owner]
        self._clock = clock
        self._waited_for = waited_for

    def __getattr__(self, name: str) -> Any:
        own = getattr(self._part, name)
        return self._timing(own, self._calls[name]) if name in self._calls else own

    def _timing(self, call: Callable[..., Any], part: str) -> Callable[..., Any]:
        def timed(*arguments: Any, **named: Any) -> Any:
            began = time.perf_counter()
            answer = call(*arguments, **named)
            self._clock.add(self._owner, part, began)
            if self._waited_for is not None and part == "verify":
                began = time.perf_counter()
                synchronize(self._waited_for)
                self._clock.add(self._owner, WAIT, began)
            return answer

        return timed


def _timed(run: Callable[[], object], device: torch.device) -> float:
    if device.type != "cuda":
        began = time.perf_counter()
        run()
        return time.perf_counter() - began
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    start.record()
    run()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1e3
