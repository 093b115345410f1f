"""Rows of a decoder's own head, copied out of its blocks."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from specchat.core.reading import HeadOutput
from specchat.models.cpu_kernels.growing_head import GrowingHead
from specchat.models.cpu_kernels.kernels import Kernels
from specchat.models.cpu_kernels.product import Product


class GatheredHead:
    """Some tokens' logits with the bits that the whole head gives them, in less time and memory."""

    def __init__(self, kernels: Kernels, head: Product, norm: Tensor, epsilon: float, threads: int) -> None:
        """No rows yet; `head` is the decoder's own, and stays its own."""
        assert head.bias is None, "heads have no bias"
        self._kernels, self._whole = kernels, head
        self._some = GrowingHead(kernels, norm, epsilon, head.bits, head.minima, threads)

    def append(self, tokens: Sequence[int]) -> None:
        """Add these tokens' rows."""
        some, rows = self._some, self._some.rows + len(tokens)
        room = some.room_for(rows)
        self._kernels.gather(self._whole.as_c(), tokens, room.data_ptr(), len(room), some.rows)
        some.holds(rows)

    def scores(self, states: Tensor) -> HeadOutput:
        """Everything that can be said of (n, d) states; tokens are places among the rows."""
        return self._some.scores(states)
