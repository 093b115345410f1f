"""Rows of a head as torch multiplies them."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from specchat.core.reading import HeadOutput, HeadTensors
from specchat.core.sampling import best_tokens

_BEST = 64


class TorchHead:
    """A head whose rows grow, on any device and in any format."""

    def __init__(
        self,
        normed: Callable[[Tensor], Tensor],
        like: Tensor | None = None,
        finished: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        """No rows yet.

        Args:
            normed: (n, d) states → what rows are multiplied with.
            like: a tensor in the format and on the device of the rows; float32 on the processor where it is left out.
            finished: products → logits, where more than a product makes them.
        """
        self._normed, self._finished = normed, finished
        self._like = torch.empty(0) if like is None else like
        self._room = self._like.new_empty(0, 0)
        self._count = 0

    @torch.inference_mode()
    def append(self, rows: Tensor) -> None:
        """Add rows, (n, d), between passes or while a pass is taken in, which runs in this mode."""
        first, end = self._count, self._count + len(rows)
        if end > len(self._room):
            room = self._like.new_empty(max(end, len(self._room) + len(self._room) // 4), rows.shape[1])
            if first:
                room[:first] = self._room[:first]
            self._room = room
        self._room[first:end] = rows
        self._count = end

    def scores(self, states: Tensor) -> HeadOutput:
        """Everything that can be said of (n, d) states; tokens are places among the rows."""
        logits = F.linear(self._normed(states).to(self._like), self._room[: self._count])
        logits = (logits if self._finished is None else self._finished(logits)).float()
        return output_of(logits)


def output_of(logits: Tensor) -> HeadOutput:
    """What a head that guesses says besides its (n, H) logits."""
    highest, places = best_tokens(logits, min(_BEST, logits.shape[1]))
    return HeadTensors(logits, places, logits.logsumexp(dim=-1), highest)
