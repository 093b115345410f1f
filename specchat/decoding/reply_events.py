"""What is reported about a reply while it is written: its start, the prompt's reading, its rounds, its end."""

from __future__ import annotations

from dataclasses import dataclass

from specchat.core.record import record
from specchat.core.round import Ledger, Round
from specchat.core.speedup import RoundIntervals
from specchat.decoding.stopping import Stop


@dataclass(frozen=True)
class ReplyStarted:
    """The reply begins: which seed it uses and how much of the prompt the cache held."""

    prompt_tokens: int
    reused_tokens: int
    seed: int


@dataclass(frozen=True)
class Prefilled:
    """Prompt tokens read so far, of those that had to be read."""

    done: int
    total: int
    at_s: float


@record
class RoundWritten:
    """A round was done. `texts[i]` is what became readable with the i-th emitted token; `last`: none will follow."""

    round: Round
    texts: tuple[str, ...]
    at_s: float
    last: bool = False


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
