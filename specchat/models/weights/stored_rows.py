"""Matrices in their files' own formats, for kernels that read these formats."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specchat.models.weights.gguf_formats import Kind

_OF_DTYPE = {torch.float32: Kind.F32, torch.float16: Kind.F16, torch.bfloat16: Kind.BF16}


@dataclass(frozen=True)
class StoredRows:
    """A matrix that has not been unpacked yet.

    Args:
        kind: GGUF's number of the rows' format.
        data: (rows, bytes per row) uint8, without gaps.
        length: how many numbers a row holds.
        order: (rows) int32, which of them stand where; None for all, as they lie.
    """

    kind: int
    data: np.ndarray[Any, np.dtype[np.uint8]]
    length: int
    order: np.ndarray[Any, np.dtype[np.int32]] | None = None

    @classmethod
    def of_tensor(cls, weight: Tensor) -> StoredRows | None:
        """(rows, length) floating point numbers; None for a format or a device where they cannot be read so."""
        kind = _OF_DTYPE.get(weight.dtype)
        if kind is None or weight.device.type != "cpu":
            return None
        return cls(kind, weight.detach().contiguous().view(torch.uint8).numpy(), weight.shape[1])

    @property
    def rows(self) -> int:
        return len(self.data if self.order is None else self.order)

    def some(self, rows: slice) -> StoredRows:
        """A few of the rows. Nothing is copied."""
        if self.order is None:
            return replace(self, data=self.data[rows])
        return replace(self, order=self.order[rows])

    def permuted(self, order: Tensor) -> StoredRows:
        """The same rows in another order: row order[i] stands at i. Nothing is copied."""
        assert self.order is None, "rows are put into another order once"
        return replace(self, order=order.to(torch.int32).numpy())
