"""Events of a reply: its start, the prompt's reading, its rounds, its end; and the clock that they are timed by."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from specchat.core.record import record
from specchat.core.round import Ledger, Round
from specchat.core.speedup import RoundIntervals
from specchat.decoding.emission import Stop
from specchat.decoding.layer_lens import LayerChoices


@dataclass(frozen=True)
class ReplyStarted:
    """The reply begins: which seed it uses and how much of the prompt the cache held; `lossy`: rounded to 8 bits."""

    prompt_tokens: int
    reused_tokens: int
    seed: int
    lossy: bool = False


@dataclass(frozen=True)
class PromptRead:
    """Prompt tokens read so far, of those that had to be read."""

    done: int
    total: int
    at_s: float


@record
class RoundWritten:
    """A round was done. `texts[i]` is what became readable with the i-th emitted token; `last`: none will follow.

    `layers[i]` says where the i-th emitted token's place was decided, where that was asked for.
    """

    round: Round
    texts: tuple[str, ...]
    at_s: float
    last: bool = False
    layers: tuple[LayerChoices, ...] = ()


@dataclass(frozen=True)
class ReplyEnded:
    """The reply is complete."""

    stop: Stop
    tail: str
    ledger: Ledger
    gaps: RoundIntervals
    prefill_s: float
    at_s: float
    stop_string: str | None


Event = ReplyStarted | RoundWritten | ReplyEnded


class Stopwatch:
    """Seconds since `start`, those spent inside `stopped` apart."""

    def __init__(self) -> None:
        self._began = self._stopped = time.perf_counter()

    def start(self) -> None:
        self._began = time.perf_counter()

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._began

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """The clock stands still inside."""
        self.stop()
        try:
            yield
        finally:
            self.go_on()

    def stop(self) -> None:
        self._stopped = time.perf_counter()

    def go_on(self) -> None:
        self._began += time.perf_counter() - self._stopped
