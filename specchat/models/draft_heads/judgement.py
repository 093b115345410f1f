"""Compares the original weights of a network with learnt ones on text that neither has learnt from."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

DEPTH = 4
"""Guesses in the chains that are compared."""

MOST_CHAINS = 1024
"""How many of the most recent chains count."""

_FEWEST_CHAINS = 128
_SURELY = 2.0
"""Standard deviations of a fair coin: learnt weights that lost by so much are worse."""


@dataclass(frozen=True)
class Compared:
    """Chains from the same places, drafted with both.

    Args:
        chains: how many.
        before, now: for each depth, how many were right that far, with the original and with the learnt weights.
        better, worse: from how many places the learnt weights were right further, and less far.
    """

    chains: int
    before: tuple[int, ...]
    now: tuple[int, ...]
    better: int
    worse: int

    @classmethod
    def of(cls, before: Tensor, now: Tensor) -> Compared:
        """From (n,) how many guesses of each chain were right."""
        deep = range(1, DEPTH + 1)
        return cls(
            len(now),
            tuple(int((before >= depth).sum()) for depth in deep),
            tuple(int((now >= depth).sum()) for depth in deep),
            int((now > before).sum()),
            int((now < before).sum()),
        )


class Judgement:
    """What was compared, reply by reply; old replies no longer count."""

    def __init__(self) -> None:
        self._replies: deque[Compared] = deque()

    def add(self, reply: Compared) -> None:
        self._replies.append(reply)
        while sum(one.chains for one in self._replies) > MOST_CHAINS and len(self._replies) > 1:
            self._replies.popleft()

    @property
    def total(self) -> Compared:
        """All that counts, together."""
        each = self._replies
        return Compared(
            sum(one.chains for one in each),
            tuple(sum(one.before[depth] for one in each) for depth in range(DEPTH)),
            tuple(sum(one.now[depth] for one in each) for depth in range(DEPTH)),
            sum(one.better for one in each),
            sum(one.worse for one in each),
        )

    @property
    def worse(self) -> bool:
        """Whether the learnt weights surely guess worse than the original ones."""
        total = self.total
        lost = total.worse - total.better
        return total.chains >= _FEWEST_CHAINS and lost > _SURELY * (total.worse + total.better) ** 0.5

    def saved(self) -> Tensor:
        """(n, 3 + 2 · DEPTH) int64, a row for each reply."""
        rows = [(one.chains, one.better, one.worse, *one.before, *one.now) for one in self._replies]
        return torch.tensor(rows, dtype=torch.int64).reshape(len(rows), 3 + 2 * DEPTH)

    @classmethod
    def restored(cls, saved: Tensor) -> Judgement:
        """The judgement that `saved` made; raises ValueError if the tensor is not one that `saved` made."""
        if saved.dtype != torch.int64 or saved.dim() != 2 or saved.shape[1] != 3 + 2 * DEPTH or bool((saved < 0).any()):
            raise ValueError("its judgement is damaged")
        judgement = cls()
        for row in saved.tolist():
            counts: Sequence[int] = row
            chains, better, worse = counts[:3]
            judgement.add(Compared(chains, tuple(counts[3 : 3 + DEPTH]), tuple(counts[3 + DEPTH :]), better, worse))
        return judgement
