"""Rotation of queries and keys by their position."""

from __future__ import annotations

import torch
from torch import Tensor


class Rotation:
    """Turns the halves of every head, as pairs, by angles that grow with the position.

    Reference: Su et al., RoFormer, arXiv:2104.09864.
    """

    def __init__(self, theta: float, head_dim: int) -> None:
        """Angles of base `theta`; `frequencies` may be replaced before the first use."""
        self.frequencies = theta ** -(torch.arange(0, head_dim, 2, device="cpu") / head_dim)
        self._table = torch.empty(0)

    def __call__(self, heads: Tensor, positions: Tensor) -> Tensor:
        """(…, A, heads, head_dim) rotated, those of row a as far as the (A,) ascending positions say."""
        cos, sin = self._turns(positions).unbind(1)
        return heads * cos + heads.roll(heads.shape[-1] // 2, dims=-1) * sin

    def _turns(self, positions: Tensor) -> Tensor:
        """(A, 2, 1, head_dim) cosines and sines of these positions, those of the first half of a head negative."""
        last = int(positions[-1])
        if last >= len(self._table):
            angles = torch.arange(max(2 * last, 512))[:, None] * self.frequencies
            cos, sin = torch.cat([angles.cos()] * 2, -1), torch.cat([-angles.sin(), angles.sin()], -1)
            self._table = torch.stack([cos, sin], dim=1)[:, :, None].to(positions.device)
        return self._table[positions]
