"""The output of a network's head for some rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from torch import Tensor

from specchat.core.record import record

LogProbabilities = Callable[[Sequence[int], Sequence[int]], list[float]]
"""(n,) rows, and of each a token → (n,) what its logits give the token; tokens of one row stand side by side."""


class NamedInMemory(NamedTuple):
    """Where the likeliest tokens of n rows lie in memory, for compiled code; valid as long as the output.

    Args:
        width: V, of the logits.
        named: K, so many of each row.
        likeliest: address of (n, K) int32 tokens, best first.
        highest: of (n, K) float32, their logits.
        totals: of (n,) float32, the logarithms of the sums of the exponentials of the logits.
    """

    width: int
    named: int
    likeliest: int
    highest: int
    totals: int


class RowInMemory(NamedTuple):
    """A row of logits on the host without a tensor: making one takes torch as long as C takes to draw from the row.

    Args:
        address: of (width) float32 without gaps; valid as long as the output.
        tensor: makes the (width,) tensor.
    """

    address: int
    width: int
    tensor: Callable[[], Tensor]


class HeadOutput(Protocol):
    """Logits, and what the head computed on the way to them."""

    @property
    def logits(self) -> Tensor:
        """(n, V), or (n, H) where the head has rows for some tokens only."""

    @property
    def likeliest(self) -> Tensor | None:
        """(n, K) tokens with the highest logits, best first, of equals the one with the lower number, where they are
        found on the way."""

    @property
    def totals(self) -> Tensor | None:
        """(n,) logarithm of the sum of the exponentials of the logits, likewise."""

    @property
    def highest(self) -> Tensor | None:
        """(n, K) the logits of `likeliest`, likewise."""

    @property
    def tokens(self) -> Tensor | None:
        """(H,) int64, the token of each column; None where all tokens have one."""

    @property
    def first(self) -> Sequence[int] | None:
        """(n,) the first of `likeliest` for each row as plain numbers, where they lie on the host."""

    @property
    def in_memory(self) -> NamedInMemory | None:
        """`likeliest`, `highest` and `totals` without tensors, where they lie in memory side by side."""

    @property
    def row_in_memory(self) -> Callable[[int], RowInMemory] | None:
        """Tells where the logits of a row lie, where they were written to the host's memory."""

    @property
    def log_probabilities(self) -> LogProbabilities | None:
        """Reads some of them off the logits faster than torch, where there is such a way."""


@record
class HeadTensors:
    """A `HeadOutput` whose tensors are made already."""

    logits: Tensor
    likeliest: Tensor | None = None
    totals: Tensor | None = None
    highest: Tensor | None = None
    tokens: Tensor | None = None
    first: Sequence[int] | None = None
    in_memory: NamedInMemory | None = None
    row_in_memory: Callable[[int], RowInMemory] | None = None
    log_probabilities: LogProbabilities | None = None
