"""A norm and a head whose rows grow, in the blocks that the kernels read."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from specchat.core.reading import HeadOutput
from specchat.models.cpu_kernels.c_structures import CDecoder
from specchat.models.cpu_kernels.kernels import Kernels
from specchat.models.cpu_kernels.logits_buffer import LogitsBuffer, SpareMemory
from specchat.models.cpu_kernels.product import LANES, CProduct
from specchat.models.cpu_kernels.tensor_pointers import pointer
from specchat.models.weights.weight_source import GROUP

_FIRST_ROOM = 1024


class GrowingHead:
    """Memory for rows of one kind, and what is said of states with those that are there."""

    def __init__(
        self, kernels: Kernels, norm: Tensor, epsilon: float, bits: int, minima: bool = False, threads: int = 1
    ) -> None:
        """No rows yet.

        Args:
            norm: (d,) float32 factors of the norm.
            bits, minima: what a row consists of; see `Product`.
        """
        self._kernels, self._norm, self._epsilon = kernels, norm.float().contiguous(), epsilon
        self._kind, self._threads = (bits, int(minima)), threads
        groups = -(-len(norm) // GROUP)
        self.block_bytes = groups * (LANES * GROUP // 8 * bits + (2 if minima else 1) * LANES * 2)
        self._blocks = torch.zeros(0, dtype=torch.uint8)
        self._c = CDecoder()
        self.rows = 0

    def room_for(self, rows: int) -> Tensor:
        """(bytes,) uint8, blocks for so many rows; those that are there stay, the rest are zeros."""
        wanted = -(-rows // LANES)
        there = len(self._blocks) // self.block_bytes
        if wanted > there:
            blocks = max(wanted, there + there // 4, _FIRST_ROOM // LANES)
            room = torch.zeros(blocks * self.block_bytes, dtype=torch.uint8)
            room[: len(self._blocks)] = self._blocks
            self._blocks = room
            if self.rows:
                self.holds(self.rows)  # what C was told is where they were
        return self._blocks[: wanted * self.block_bytes]

    def holds(self, rows: int) -> None:
        """This many rows were written. Checked."""
        data = self.room_for(rows)
        norm = pointer("a norm", self._norm, torch.float32, len(self._norm))
        numbers = pointer("a head", data, torch.uint8, len(data))
        head = CProduct(len(self._norm), rows, *self._kind, len(data), numbers, None)
        self._c = CDecoder(hidden=len(self._norm), vocab_size=rows, epsilon=self._epsilon, norm=norm, head=head)
        self._kernels.check_head(self._c)
        self.rows = rows

    @property
    def as_c(self) -> CDecoder:
        """The head for C, checked; valid until rows are added."""
        return self._c

    def scores(self, states: Tensor) -> HeadOutput:
        """Everything that can be said of (n, d) states; tokens are places among the rows."""
        states = states.to("cpu", torch.float32).contiguous()
        reads = partial(self._kernels.logprobs, self._threads)
        said = LogitsBuffer(len(states), self.rows, reads, SpareMemory(0), highest=True, totals=True)
        if len(states):
            given = pointer("states", states, torch.float32, len(states), len(self._norm))
            self._kernels.head(self._threads, self._c, given, len(states), said)
        return said
