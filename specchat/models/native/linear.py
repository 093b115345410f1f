"""Products and heads of small networks through the compiled kernels, in 8 bits, on the thread that asks."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from specchat.models.base.head_output import HeadOutput
from specchat.models.files.gguf_reader import GROUP
from specchat.models.files.stored_rows import StoredRows
from specchat.models.native.arena import Arena
from specchat.models.native.c_structures import CDecoder
from specchat.models.native.kernels import HeadRoom, Kernels, kernels_for
from specchat.models.native.packing import pack_into
from specchat.models.native.product import LANES, CProduct, Product
from specchat.models.native.tensor_pointers import pointer

_BITS = 8
_BYTES_OF_BLOCK = LANES * GROUP + 2 * LANES
_FIRST_ROOM = 1024


def small_network_kernels() -> Kernels:
    """Kernels with a team of their own, of one thread: what is small costs less than waking another.

    Raises:
        NativeUnavailable: they cannot be had here.
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
        self._c = self.product.as_c()
        kernels.check_linear(self._c)

    def forward(self, x: Tensor) -> Tensor:
        """(…, out) float32 from (…, in)."""
        product, rows = self.product, x.numel() // self.product.inputs
        x = x.to("cpu", torch.float32).contiguous()
        out = torch.empty(*x.shape[:-1], product.out)
        if rows:
            states = pointer("states", x, torch.float32, *x.shape[:-1], product.inputs)
            self.kernels.linear(1, self._c, rows, states, out.data_ptr())
        return out


class NativeHead:
    """A norm and a head whose rows grow: tokens may be added while it is used."""

    def __init__(self, kernels: Kernels, norm: Tensor, epsilon: float) -> None:
        """No rows yet.

        Args:
            norm: (d,) float32 factors of the norm.
        """
        self._kernels, self._norm, self._epsilon = kernels, norm.float().contiguous(), epsilon
        self._blocks = torch.zeros(0, dtype=torch.uint8)
        self._tail = torch.empty(0, len(norm))  # rows of the last block, while it is not full
        self._rows = 0
        self._c = CDecoder()

    def __len__(self) -> int:
        return self._rows

    def append(self, rows: Tensor) -> None:
        """Add rows, (n, d) float32, behind those there are."""
        first = (self._rows - len(self._tail)) // LANES
        new = torch.cat([self._tail, rows])
        step = -(-len(self._norm) // GROUP) * _BYTES_OF_BLOCK
        blocks = first + -(-len(new) // LANES)
        if blocks * step > len(self._blocks):
            room = torch.zeros(
                max(blocks, 2 * len(self._blocks) // step, _FIRST_ROOM // LANES) * step, dtype=torch.uint8
            )
            room[: len(self._blocks)] = self._blocks
            self._blocks = room
        pack_into(self._kernels, _stored(new), _BITS, self._blocks[first * step :])
        self._rows += len(rows)
        self._tail = new[len(new) // LANES * LANES :].clone()
        data = self._blocks[: blocks * step]
        head = CProduct(
            *(len(self._norm), self._rows, _BITS, 0, len(data)),
            *(pointer("a head", data, torch.uint8, len(data)), None),
        )
        norm = pointer("a norm", self._norm, torch.float32, len(self._norm))
        self._c = CDecoder(hidden=len(self._norm), vocab_size=self._rows, epsilon=self._epsilon, norm=norm, head=head)
        self._kernels.check_head(self._c)

    @property
    def as_c(self) -> CDecoder:
        """The head for C, checked; valid until rows are added."""
        return self._c

    def room(self, rows: int) -> HeadRoom:
        """Room for what it says of so many rows."""
        return HeadRoom(rows, self._rows, highest=True, totals=True)

    def scores(self, states: Tensor) -> HeadOutput:
        """Everything that can be said of (n, d) states; tokens are places among the rows."""
        states = states.to("cpu", torch.float32).contiguous()
        said = self.room(len(states))
        if len(states):
            given = pointer("states", states, torch.float32, len(states), len(self._norm))
            self._kernels.head(1, self._c, given, len(states), said)
        return said.output


def _stored(weight: Tensor) -> StoredRows:
    stored = StoredRows.of_tensor(weight.float())
    assert stored is not None, "float32, in main memory"
    return stored
