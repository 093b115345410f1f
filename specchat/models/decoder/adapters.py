"""Low-rank adapters prepared for a network's products: checked, rows in its order, values in its format."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specchat.core.device_copy import to_device
from specchat.core.request import Adapter, ExtraRow
from specchat.errors import ModelError, nearest
from specchat.models.decoder.shape import Shape
from specchat.models.weights.weight_source import paired_rows

PRODUCTS = ("q", "k", "v", "o", "gate", "up", "down")

MOST_RANK = 1024
"""Adapters of a higher rank are no longer small."""

Factors = Mapping[tuple[int, str], tuple[Tensor, Tensor]]


def sizes_of(shape: Shape) -> dict[str, tuple[int, int]]:
    """Product → (outputs, inputs)."""
    return {name: shape.matrix(name) for name in PRODUCTS}


def checked(adapter: Adapter, layers: int, sizes: Mapping[str, tuple[int, int]]) -> None:
    """Refuse factors that fit no product of the network; ModelError with the product and what would fit."""
    for (layer, name), (down, up) in adapter.factors.items():
        if name not in sizes:
            raise ModelError(f"an adapter adds to {name!r}, which no layer has{nearest(name, sizes)}")
        if not 0 <= layer < layers:
            raise ModelError(f"an adapter adds to layer {layer} of {layers}; layers count from 0")
        outputs, inputs = sizes[name]
        rank = down.shape[0]
        if down.shape != (rank, inputs) or up.shape != (outputs, rank) or not 0 < rank <= MOST_RANK:
            raise ModelError(
                f"an adapter's {name!r} of layer {layer} has factors {tuple(down.shape)} and {tuple(up.shape)}; "
                f"(rank, {inputs}) and ({outputs}, rank) fit, with a rank of 1 to {MOST_RANK}"
            )


def paired(factors: Factors, head_dim: int) -> Factors:
    """These factors for a network whose query and key rows that rotate together lie side by side."""
    return {
        (layer, name): (down, up[paired_rows(len(up), head_dim)] if name in ("q", "k") else up)
        for (layer, name), (down, up) in factors.items()
    }


@dataclass(frozen=True)
class AdaptedWhere:
    """Adapters on rows of a recorded pass, whose rows have no fixed places.

    Args:
        adapters: their factors.
        adapter_of: (rows,) int64, which of them acts on each row, −1 for none.
    """

    adapters: Sequence[Factors]
    adapter_of: Tensor

    def add_(self, layer: int, columns: Mapping[str, slice], x: Tensor, out: Tensor) -> None:
        for place, factors in enumerate(self.adapters):
            acts = (self.adapter_of == place)[:, None]
            for name, where in columns.items():
                if (found := factors.get((layer, name))) is not None:
                    down, up = found
                    part = out[:, where]
                    part.copy_(torch.where(acts, part + (x @ down.t()) @ up.t(), part))


def acting(extra_rows: Sequence[ExtraRow], adapters: Sequence[Adapter]) -> list[int]:
    """For each extra row the place of its adapter among these, −1 for none."""
    return [-1 if extra_row.adapter is None else adapters.index(extra_row.adapter) for extra_row in extra_rows]


def adapters_of(extra_rows: Sequence[ExtraRow]) -> tuple[Adapter, ...]:
    return tuple(dict.fromkeys(extra_row.adapter for extra_row in extra_rows if extra_row.adapter is not None))


@dataclass(frozen=True)
class Adapted:
    """Rows of one pass on which adapters act: some of its extra rows, which are the last rows whatever was dropped.

    Args:
        acting: per adapter its factors, and its rows counted from the end (−1 is the last).
    """

    acting: Sequence[tuple[Factors, Tensor]]

    @classmethod
    def of(
        cls, extra_rows: Sequence[ExtraRow], prepare: Callable[[Adapter], Factors], device: torch.device
    ) -> Adapted | None:
        """None where no extra row names an adapter."""
        rows: dict[Adapter, list[int]] = {}
        for place, extra_row in enumerate(extra_rows):
            if extra_row.adapter is not None:
                rows.setdefault(extra_row.adapter, []).append(place - len(extra_rows))
        if not rows:
            return None
        return cls([(prepare(adapter), to_device(torch.tensor(some), device)) for adapter, some in rows.items()])

    def add_(self, layer: int, columns: Mapping[str, slice], x: Tensor, out: Tensor) -> None:
        """Add x · downᵀ · upᵀ for the rows of each adapter: (rows, inputs) → (rows, outputs). In place.

        Other rows keep their bits. In `columns` of `out` lie the products of x, which were computed together.
        """
        for factors, rows in self.acting:
            for name, where in columns.items():
                if (found := factors.get((layer, name))) is not None:
                    down, up = found
                    out[rows, where] += (x[rows] @ down.t()) @ up.t()
