"""Products and heads of small networks through the compiled kernels, in 8 bits, on the thread that asks."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from specchat.core.reading import HeadOutput
from specchat.models.cpu_kernels.arena import Arena
from specchat.models.cpu_kernels.c_structures import CDecoder
from specchat.models.cpu_kernels.growing_head import GrowingHead
from specchat.models.cpu_kernels.kernels import Kernels, kernels_for
from specchat.models.cpu_kernels.packing import RowReader, pack_into
from specchat.models.cpu_kernels.product import LANES, Product
from specchat.models.cpu_kernels.tensor_pointers import pointer
from specchat.models.weights.weight_source import StoredRows

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
        kernels.check_linear(self.as_c)

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


class NativeHead:
    """A norm and a head whose rows grow: tokens may be added while it is used."""

    def __init__(self, kernels: Kernels, norm: Tensor, epsilon: float) -> None:
        """No rows yet.

        Args:
            norm: (d,) float32 factors of the norm.
        """
        self._kernels = kernels
        self._head = GrowingHead(kernels, norm, epsilon, _BITS)
        self._tail = torch.empty(0, len(norm))  # rows of the last block, while it is not full

    def __len__(self) -> int:
        return self._head.rows

    def append(self, rows: Tensor) -> None:
        """Add rows, (n, d) float32, behind those there are."""
        head, first = self._head, (len(self) - len(self._tail)) // LANES
        new = torch.cat([self._tail, rows])
        room = head.room_for(first * LANES + len(new))
        pack_into(self._kernels, _stored(new), _BITS, room[first * head.block_bytes :])
        head.holds(len(self) + len(rows))
        self._tail = new[len(new) // LANES * LANES :].clone()

    @property
    def as_c(self) -> CDecoder:
        """The head for C, checked; valid until rows are added."""
        return self._head.as_c

    def scores(self, states: Tensor) -> HeadOutput:
        """Everything that can be said of (n, d) states; tokens are places among the rows."""
        return self._head.scores(states)


def _stored(weight: Tensor) -> StoredRows:
    stored = StoredRows.of_tensor(weight.float())
    assert stored is not None, "float32, in main memory"
    return stored
