"""Room for what the compiled kernels' head says of some rows."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from specchat.core.head_output import NamedInMemory

BEST = 64
"""How many of the highest logits of a row the head names; best.h has the same number."""

FEW, _SPARE = 4, 2
"""Rows that spare memory has room for, and how many such pieces are kept: one is written while the other is seen."""

_LARGE = 4 << 20
"""Numbers: a piece for more rows that is no larger is kept as well."""


class _Memory(NamedTuple):
    """Numbers, how many, and their address."""

    data: Tensor
    floats: int
    address: int


_NONE_NAMED = array("i", bytes(4 * BEST))


class ReadsLogProbabilities(Protocol):
    """Reads logarithms of probabilities off logits."""

    def __call__(self, said: HeadRoom, rows: Sequence[int], tokens: Sequence[int]) -> list[float]:
        """(n,) rows, and of each a token → (n,) what its logits give the token; see `Kernels.logprobs`."""


class SpareMemory:
    """Memory for logits that is used again once nobody can see it any more.

    Asking torch for it takes as long as judging, between two passes; the system takes as long to take back a piece for
    more than few rows, and then fills the next one page by page.
    """

    def __init__(self, width: int) -> None:
        """For rows of this width; none yet."""
        self._floats, self._free = FEW * width, list[_Memory]()
        self._large: _Memory | None = None

    def take(self, floats: int) -> _Memory:
        """Memory for so many numbers or more, whatever they are now."""
        if floats <= self._floats:
            if self._free:
                return self._free.pop()
            floats = self._floats
        elif (large := self._large) is not None and floats <= large.floats:
            self._large = None
            return large
        with torch.inference_mode(False):  # whoever sees it next may be in another mode
            data = torch.empty(floats)
        return _Memory(data, floats, data.data_ptr())

    def give_back(self, memory: _Memory) -> None:
        """Nobody sees it any more."""
        if memory.floats == self._floats:
            if len(self._free) < _SPARE:
                self._free.append(memory)
        elif memory.floats <= _LARGE and (self._large is None or self._large.floats < memory.floats):
            self._large = memory


class HeadRoom:
    """Room for what a head says of some rows: a `HeadOutput` whose likeliest tokens become a tensor if it is asked for.

    Between two passes nothing is in the processor's caches, and a view that torch makes takes as long as judging.

    Attributes:
        rows, width: of the logits.
        totals, highest: where asked for.
        addresses: of logits, of (rows, BEST) int32 places of the highest, of their (rows, BEST) float32 logits and of
            the (rows,) totals, as C takes them.
    """

    tokens = None

    def __init__(
        self,
        rows: int,
        width: int,
        reads: ReadsLogProbabilities,
        spare: SpareMemory,
        *,
        highest: bool = False,
        totals: bool = False,
    ) -> None:
        self._seen = True  # as long as there is none to give back
        self._memory, self._spare, self._seen = spare.take(rows * width), spare, False
        self.rows, self.width = rows, width
        self._best, self._reads = _NONE_NAMED * rows, reads  # read sooner than a tensor
        self._highest = torch.empty(rows, BEST) if highest else None
        self.totals = torch.empty(rows) if totals else None
        self.addresses = (
            *(self._memory.address, self._best.buffer_info()[0]),
            None if self._highest is None else self._highest.data_ptr(),
            None if self.totals is None else self.totals.data_ptr(),
        )

    def __del__(self) -> None:
        if not self._seen:
            self._spare.give_back(self._memory)

    @property
    def logits(self) -> Tensor:
        """(rows, V) float32."""
        self._seen = True
        return self._memory.data[: self.rows * self.width].view(self.rows, self.width)

    @property
    def likeliest(self) -> Tensor:
        """(rows, K) tokens with the highest logits: BEST, or as many as there are."""
        if not self.rows:
            return torch.empty(0, min(BEST, self.width), dtype=torch.int32)
        return torch.frombuffer(self._best, dtype=torch.int32).view(self.rows, BEST)[:, : self.width]

    @property
    def highest(self) -> Tensor | None:
        """(rows, K) their logits."""
        return None if self._highest is None else self._highest[:, : self.width]

    @property
    def first(self) -> Sequence[int]:
        """(rows,) the first of `likeliest`."""
        return self._best[::BEST]

    @property
    def in_memory(self) -> NamedInMemory | None:
        """Where compiled code finds what is named, if all of it was asked for and there is as much."""
        _, likeliest, highest, totals = self.addresses
        if highest is None or totals is None or self.width < BEST:
            return None
        return NamedInMemory(self.width, BEST, likeliest, highest, totals)

    def log_probabilities(self, rows: Sequence[int], tokens: Sequence[int]) -> list[float]:
        """(n,) rows, and of each a token → (n,) what its logits give the token."""
        return self._reads(self, rows, tokens)
