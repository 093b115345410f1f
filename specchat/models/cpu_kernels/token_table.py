"""Rows by token, as the compiled kernels look them up."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specchat.models.cpu_kernels.tensor_pointers import pointer


@dataclass(frozen=True)
class TokenTable:
    """Rows of some tokens.

    Args:
        rows: (m, d) float32.
        places: (tokens,) int32 where each token's row is, −1 for those without; tokens beyond have none.
    """

    rows: Tensor
    places: np.ndarray[Any, np.dtype[np.int32]]

    @cached_property
    def as_c(self) -> tuple[int, int, int, int]:
        """Address and number of the rows, and of the places; asking for addresses takes as long as a step."""
        count, width = self.rows.shape
        return pointer("rows of tokens", self.rows, torch.float32, count, width), count, *_of(self.places)


def _of(places: np.ndarray[Any, np.dtype[np.int32]]) -> tuple[int, int]:
    assert places.dtype == np.int32, "as C reads them"
    return places.ctypes.data, len(places)
