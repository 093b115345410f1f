"""The device, the weights and the extent of the measuring; and timers for the device and for the host."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from specchat.core.device_copy import synchronize
from specchat.decoding.speculate import Speculator
from specchat.errors import UsageError
from specchat.models.machine import choose_device, choose_precision


@dataclass(frozen=True)
class Extent:
    """How much is done.

    Args:
        buffer_bytes: copied and read to measure bandwidth.
        contexts: tokens of context at which passes are timed.
        rows: of the passes that are timed: up to a wide tree, and one more, where kernels of fixed sizes take a step.
        nodes: draft nodes of a wide tree. With the root they make a number of rows that kernels like.
        rounds, warm_rounds: that count, and before them.
        prompts, reply_tokens: of real text.
        text_context: tokens of context at which the costs of passes over real text are timed.
    """

    buffer_bytes: int
    contexts: tuple[int, ...]
    rows: tuple[int, ...]
    nodes: int
    rounds: int
    warm_rounds: int
    prompts: int
    reply_tokens: int
    text_context: int

    @property
    def cost_rows(self) -> tuple[int, ...]:
        """Rows at which the costs of passes are timed for planning: up to the widest tree with its root."""
        return tuple(rows for rows in self.rows if rows <= self.wide_rows)

    @property
    def wide_rows(self) -> int:
        """Rows of a wide tree: its nodes and the root."""
        return self.nodes + 1


FULL = Extent(
    buffer_bytes=4 << 30,
    contexts=(512, 4096),
    rows=(1, 2, 4, 8, 16, 32, 64, 65),
    nodes=63,
    rounds=64,
    warm_rounds=16,
    prompts=14,
    reply_tokens=96,
    text_context=256,
)
TINY = Extent(
    buffer_bytes=1 << 20,
    contexts=(12, 40),
    rows=(1, 2, 8, 9),
    nodes=7,
    rounds=4,
    warm_rounds=24,
    prompts=2,
    reply_tokens=12,
    text_context=16,
)


@dataclass(frozen=True)
class Setup:
    """Device, number format, extent, and the weights there are.

    Args:
        tiny: small shapes and few rounds, so that a processor does it in seconds.
        weights: a small model of the Llama shape, a GGUF file or a folder, to be widened.
        target, draft: a true pair.
    """

    device: torch.device
    precision: str
    tiny: bool = False
    weights: Path | None = None
    target: Path | None = None
    draft: Path | None = None

    @classmethod
    def on(cls, device: str, tiny: bool, **weights: Path | None) -> Setup:
        """On the device a word names, in the number format that suits it.

        Raises:
            UsageError: no such device here, or a processor asked to do it all.
        """
        chosen = choose_device(device)
        if chosen.type == "cpu" and not tiny:
            raise UsageError(
                "8 billion parameters are too many for a processor; --tiny tries the program at a small size"
            )
        return cls(chosen, choose_precision("auto", chosen, quantised=False, own=True), tiny, **weights)

    @property
    def extent(self) -> Extent:
        return TINY if self.tiny else FULL

    @property
    def kernels(self) -> str:
        """Whose kernels multiply whole numbers: at the small size nothing is compiled for it."""
        return "torch" if self.tiny else "auto"

    @property
    def dtype(self) -> torch.dtype:
        return torch.float32 if self.precision == "float32" else torch.bfloat16

    def describe(self) -> dict[str, Any]:
        """Facts that two runs must share for one to go on where the other ended."""
        names = {name: getattr(self, name) for name in ("weights", "target", "draft")}
        device = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else str(self.device)
        files = {name: path.name if path is not None else None for name, path in names.items()}
        return {"device": device, "precision": self.precision, "tiny": self.tiny, **files}


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
    """Times of calls within a round on the host."""

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
