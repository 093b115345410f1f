"""One round's record: what was planned, guessed, judged and emitted, and how long each part took."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from specchat.core.budget import Budget
from specchat.core.reading import Reading
from specchat.core.record import record
from specchat.core.tree import TokenTree
from specchat.core.verdict import Verdict


@dataclass
class Timings:
    """Seconds spent drafting, verifying, and on everything else; written in as they are measured.

    Args:
        learn_s: what of everything else drafter and policy took to learn from the round.
    """

    draft_s: float = 0.0
    verify_s: float = 0.0
    other_s: float = 0.0
    learn_s: float = 0.0


@record
class Round:
    """Plan, draft, verify, judge, keep, learn: once.

    Args:
        index: counts from 0 within a reply.
        start: tokens of history before the round, the root included.
        history: the live text; it ends with the root while the round is observed, and goes on afterwards.
        emitted: tokens this round added to the text, after any cut.
        draft_passes: forward passes of draft models.
        timings: complete once the round is over; while it is observed, what has been measured so far. The controller
            observes it after the drafter.
        extra_rows: rows that the drafter attached to the target's pass.
    """

    index: int
    start: int
    history: Sequence[int]
    budget: Budget
    tree: TokenTree
    reading: Reading
    verdict: Verdict
    emitted: tuple[int, ...]
    draft_passes: int = 0
    timings: Timings = field(default_factory=Timings)
    extra_rows: int = 0

    @property
    def rows(self) -> int:
        """Rows that the target's pass was asked for: the tree's and the extra rows'."""
        return len(self.tree) + self.extra_rows

    @property
    def accepted(self) -> int:
        """Draft tokens that stand."""
        return len(self.verdict.path)
