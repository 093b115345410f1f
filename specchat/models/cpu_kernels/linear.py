"""Products and heads of small networks through the compiled kernels, in 8 bits, on the thread that asks."""

from __future__ import annotations

import copy
from array import array
from collections.abc import Sequence
from functools import partial
from typing import Self

import torch
from torch import Tensor, nn

from specchat.core.reading import HeadOutput
from specchat.models.cpu_kernels.c_interface import CDecoder, CProduct, pointer
from specchat.models.cpu_kernels.kernels import Kernels, kernels_for
from specchat.models.cpu_kernels.logits_buffer import LogitsBuffer, SpareMemory
from specchat.models.cpu_kernels.packing import LANES, Arena, Product, RowReader, bytes_of, pack_into
from specchat.models.weights.weight_source import StoredRows

_FIRST_ROOM = 1024


class GrowingHead:
    """A norm and rows of a head that may grow; those that extend it say how rows are added."""

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
        self.block_bytes = bytes_of(LANES, len(norm), bits, minima)
        self._blocks = torch.zeros(0, dtype=torch.uint8)
        self._forked = False  # another head has the same blocks
        self.as_c = CDecoder()  # the head for C, checked; valid until rows are added
        self.rows = 0

    def __len__(self) -> int:
        return self.rows

    def forked(self) -> Self:
        self._forked = True
        return copy.copy(self)

    def room_for(self, rows: int) -> Tensor:
        """(bytes,) uint8 of this head alone, blocks for so many rows; those that are there stay, the rest are zeros."""
        wanted = -(-rows // LANES)
        there = len(self._blocks) // self.block_bytes
        if wanted > there or self._forked:
            blocks = max(wanted, there + there // 4, _FIRST_ROOM // LANES)
            room = torch.zeros(blocks * self.block_bytes, dtype=torch.uint8)
            room[: len(self._blocks)] = self._blocks
            self._blocks, self._forked = room, False
            if self.rows:
                self.holds(self.rows)  # what C was told is where they were
        return self._blocks[: wanted * self.block_bytes]

    def holds(self, rows: int) -> None:
        """This many rows were written. Checked."""
        data = self.room_for(rows)
        norm = pointer("a norm", self._norm, torch.float32, len(self._norm))
        numbers = pointer("a head", data, torch.uint8, len(data))
        head = CProduct(len(self._norm), rows, *self._kind, len(data), numbers, None)
        self.as_c = CDecoder(hidden=len(self._norm), vocab_size=rows, epsilon=self._epsilon, norm=norm, head=head)
        self._kernels.check("head_alone_check", self.as_c)
        self.rows = rows

    def scores(self, states: Tensor) -> HeadOutput:
        states = states.to("cpu", torch.float32).contiguous()
        reads = partial(self._kernels.logprobs, self._threads)
        said = LogitsBuffer(len(states), self.rows, reads, SpareMemory(0), highest=True, logsumexp=True)
        if len(states):
            given = pointer("states", states, torch.float32, len(states), len(self._norm))
            self._kernels.head(self._threads, self.as_c, given, len(states), said)
        return said


_BITS = 8


def small_network_kernels() -> Kernels:
    """Kernels with a team of their own, of one thread: what is small costs less than waking another.

    Raises:
        NativeUnavailable: they cannot be built here.
    """
    return kernels_for("native", "small networks")


class NativeLinear(nn.Module):
    """A product without bias, like `nn.Linear`, with weights and activations in 8 bits and a scale per 32 of a row."""

    def __init__(self, kernels: Kernels, weight: Tensor, arena: Arena) -> None:
        """Pack a weight, (out, in) float32, into memory of the arena."""
        super().__init__()
        self.kernels = kernels
        out, inputs = weight.shape
        self.product = Product.empty(out, inputs, _BITS, False, None, arena)
        pack_into(kernels, _stored(weight), _BITS, self.product.data)
        self.as_c = self.product.as_c()
        kernels.check("linear_check", self.as_c)

    def forward(self, x: Tensor) -> Tensor:
        """(…, out) float32 from (…, in)."""
        product, rows = self.product, x.numel() // self.product.inputs
        x = x.to("cpu", torch.float32).contiguous()
        out = torch.empty(*x.shape[:-1], product.out)
        if rows:
            states = pointer("states", x, torch.float32, *x.shape[:-1], product.inputs)
            self.kernels.linear(1, self.as_c, rows, states, out.data_ptr())
        return out


class EmbeddedProduct:
    """A product with rows of a table of embeddings, each brought to a mean square of 1: one call."""

    def __init__(self, linear: NativeLinear, embedding: RowReader, epsilon: float) -> None:
        """The table has rows as long as the product's inputs."""
        self._linear, self._embedding, self._epsilon = linear, embedding, epsilon

    def write(self, tokens: Sequence[int], to: Tensor) -> None:
        """Write what comes of these tokens, one at least: (n, out) float32 without gaps."""
        which = array("i", tokens)
        rows = pointer("rows of tokens", to, torch.float32, len(which), self._linear.product.out)
        kernels, product = self._linear.kernels, self._linear.as_c
        kernels.linear_of_stored(1, self._embedding.some(which), self._epsilon, product, rows)


class NativeHead(GrowingHead):
    """A norm and a head whose rows grow: tokens may be added while it is used."""

    def __init__(self, kernels: Kernels, norm: Tensor, epsilon: float) -> None:
        super().__init__(kernels, norm, epsilon, _BITS)
        self._tail = torch.empty(0, len(norm))  # rows of the last block, while it is not full

    def append(self, rows: Tensor) -> None:
        """Add rows, (n, d) float32, behind those there are."""
        first = (self.rows - len(self._tail)) // LANES
        new = torch.cat([self._tail, rows])
        room = self.room_for(first * LANES + len(new))
        pack_into(self._kernels, _stored(new), _BITS, room[first * self.block_bytes :])
        self.holds(self.rows + len(rows))
        self._tail = new[len(new) // LANES * LANES :].clone()


class GatheredHead(GrowingHead):
    """Some tokens' logits with the bits that the whole head gives them, in less time and memory."""

    def __init__(self, kernels: Kernels, head: Product, norm: Tensor, epsilon: float, threads: int) -> None:
        """No rows yet; `head` is the decoder's own, and stays its own."""
        assert head.bias is None, "heads have no bias"
        super().__init__(kernels, norm, epsilon, head.bits, head.minima, threads)
        self._whole = head

    def append(self, tokens: Sequence[int]) -> None:
        rows = self.rows + len(tokens)
        room = self.room_for(rows)
        self._kernels.gather(self._whole.as_c(), tokens, room.data_ptr(), len(room), self.rows)
        self.holds(rows)


def _stored(weight: Tensor) -> StoredRows:
    stored = StoredRows.of_tensor(weight.float())
    assert stored is not None, "float32, in main memory"
    return stored
