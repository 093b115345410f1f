"""Room for what the compiled kernels' head says of some rows."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import NamedTuple

import torch
from torch import Tensor

from specchat.core.reading import HeadOutput, LogProbabilities, NamedInMemory, RowInMemory
from specchat.core.request import EVERYTHING, HeadNeeds

BEST = 64
"""How many of the highest logits of a row the head names; best.h has the same number."""

FEW, _SPARE = 4, 2
"""Rows that spare memory has room for, and how many such pieces are kept: one is written while the other is seen."""

_LARGE = 4 << 20
"""Numbers: a piece for more rows is kept as well if it is not larger."""


class _Memory(NamedTuple):
    """Numbers, how many, and their address."""

    data: Tensor
    floats: int
    address: int


_NONE, _NONE_NAMED, _NO_NUMBER = array("i", [0]), array("i", bytes(4 * BEST)), array("f", [0.0])

StatesAndHead = tuple[int, Callable[[Tensor], HeadOutput]]
"""How many numbers a state is, and the head that says everything of (rows, d) states."""


ReadsLogProbabilities = Callable[["LogitsBuffer", Sequence[int], Sequence[int]], list[float]]
"""(n,) rows, and of each a token → (n,) what its logits give the token; see `Kernels.logprobs`."""


class _Lent:
    """Memory that goes back once nobody has it any more, unless a tensor over it was seen."""

    def __init__(self, spare: SpareMemory, memory: _Memory) -> None:
        self._spare, self._memory, self._seen = spare, memory, False
        self.address = memory.address

    def __del__(self) -> None:
        if not self._seen:
            self._spare.give_back(self._memory)

    def see(self) -> Tensor:
        """The numbers, which are nobody else's from now on."""
        self._seen = True
        return self._memory.data


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
        if memory.floats == self._floats:
            if len(self._free) < _SPARE:
                self._free.append(memory)
        elif memory.floats <= _LARGE and (self._large is None or self._large.floats < memory.floats):
            self._large = memory


class LogitsBuffer:
    """Room for what a head says of some rows: a `HeadOutput` that is as large as what is going to be looked at.

    What it has no room for is computed when somebody asks for it after all, from the states that the head was given.
    What it has becomes a tensor when it is asked for: between two passes nothing is in the processor's caches, and a
    view that torch makes takes as long as judging.

    Attributes:
        rows, width: of the logits.
        logsumexp: where asked for.
        asked: what C is told, as `HeadAsked` of head.h has it.
        states_address: of (rows, d) float32, where C writes what the head was given; None where it has room for all.
    """

    tokens = None

    def __init__(
        self,
        rows: int,
        width: int,
        reads: ReadsLogProbabilities,
        spare: SpareMemory,
        needs: HeadNeeds = EVERYTHING,
        kept: StatesAndHead | None = None,
        *,
        highest: bool = False,
        logsumexp: bool = False,
    ) -> None:
        """Nothing said yet.

        Args:
            kept: how many numbers a state is, and the head that says all of states; where there is no room for all.
            highest, logsumexp: whether there is room for these too, for a reader that looks at everything.
        """
        self.rows, self.width, self._reads = rows, width, reads
        self._memory = _Lent(spare, spare.take(rows * width)) if needs.logits else None
        self._named = BEST if needs.likeliest else 1
        self._best = (_NONE_NAMED if needs.likeliest else _NONE) * rows  # read sooner than a tensor
        self._highest = torch.empty(rows, BEST) if highest else None
        self.logsumexp = torch.empty(rows) if logsumexp else None
        self.asked = (
            *(self._best.buffer_info()[0], self._named, self._named),
            None if self._highest is None else self._highest.data_ptr(),
            None if self._memory is None else self._memory.address,
            None if self.logsumexp is None else self.logsumexp.data_ptr(),
        )
        self.states_address = None
        if not (needs.likeliest and needs.logits):
            assert kept is not None, "what is left out can be computed"
            self._states, self._head = _NO_NUMBER * (rows * kept[0]), kept[1]
            self.states_address = self._states.buffer_info()[0]

    @cached_property
    def _all(self) -> HeadOutput:
        return self._head(torch.frombuffer(self._states, dtype=torch.float32).view(self.rows, -1))

    @property
    def logits(self) -> Tensor:
        """(rows, V) float32."""
        if self._memory is None:
            return self._all.logits
        return self._memory.see()[: self.rows * self.width].view(self.rows, self.width)

    @property
    def likeliest(self) -> Tensor | None:
        """(rows, K) tokens with the highest logits: BEST, or as many as there are."""
        if self._named < BEST:
            return self._all.likeliest
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
        return self._best if self._named == 1 else self._best[::BEST]

    @property
    def in_memory(self) -> NamedInMemory | None:
        """Where compiled code finds what is named, if all of it was asked for and there is as much."""
        likeliest, _, named, highest, _, logsumexp = self.asked
        if highest is None or logsumexp is None or named < BEST or self.width < BEST:
            return None
        return NamedInMemory(self.width, BEST, likeliest, highest, logsumexp)

    @property
    def row_in_memory(self) -> Callable[[int], RowInMemory] | None:
        """Tells where the logits of a row lie, if they were asked for."""
        if self._memory is None:
            return None
        first, width = self._memory.address, self.width
        return lambda row: RowInMemory(first + 4 * width * row, width, lambda: self.logits[row])

    @property
    def log_probabilities(self) -> LogProbabilities | None:
        """Reads what logits give tokens as logarithms of probabilities."""
        return self._all.log_probabilities if self._memory is None else partial(self._reads, self)

    def part(self, rows: range) -> HeadOutput:
        """What is said of some of the rows alone."""
        return _Part(self, rows)


class _Part:
    """Some rows of a `LogitsBuffer`, counted from the first of them."""

    tokens = logsumexp = highest = in_memory = None

    def __init__(self, whole: LogitsBuffer, rows: range) -> None:
        self._whole, self._rows = whole, rows
        self._some = slice(rows.start, rows.stop)

    @property
    def logits(self) -> Tensor:
        return self._whole.logits[self._some]

    @property
    def likeliest(self) -> Tensor | None:
        named = self._whole.likeliest
        return None if named is None else named[self._some]

    @property
    def first(self) -> Sequence[int]:
        return self._whole.first[self._some]

    @property
    def row_in_memory(self) -> Callable[[int], RowInMemory] | None:
        read = self._whole.row_in_memory
        return None if read is None else lambda row: read(self._rows[row])

    @property
    def log_probabilities(self) -> LogProbabilities | None:
        read = self._whole.log_probabilities
        return None if read is None else lambda rows, tokens: read([self._rows[row] for row in rows], tokens)
