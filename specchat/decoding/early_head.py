"""Predicts the target's tokens from the states of an early layer, by a linear map that is learnt from rounds."""

from __future__ import annotations

import torch
from torch import Tensor

from specchat.core.reading import Reading
from specchat.core.seams import Model

_FIRST_ROWS, _MOST_ROWS = 1024, 8192
"""Nodes seen before the map is first fitted, and after which nothing more is learnt."""

_LARGEST_STATE = 2048
"""Numbers in a state above which no map is learnt: it would take too much memory and time."""

_SHRINKAGE = 100.0
"""How strongly the map is held back, in mean squares of a state's numbers."""


class EarlyHead:
    """The target's final norm and head on an early layer's states, after a map that makes them last layer's states.

    The map is affine: least squares over the nodes that rounds have read to the end, held back towards no change at
    all. It is fitted anew whenever twice as many nodes were seen. Before the first fit states are taken as they are.

    Reference: Zhong et al., ProPD, arXiv:2402.13485; Belrose et al., Tuned Lens, arXiv:2303.08112. Differs: fitted in
    closed form to the target's own states while it writes, without training.

    Args:
        target: the model, of whose head it makes use.
        layer: after which layer, counted from 1.
        learns: whether the map may be learnt.
    """

    def __init__(self, target: Model, layer: int, learns: bool = True) -> None:
        self._target = target
        self._layers = (layer - 1, target.layers - 1)
        self._learns = learns and layer < target.layers and target.hidden_size <= _LARGEST_STATE
        self._seen, self._fit_at = 0, _FIRST_ROWS
        self._squares: Tensor | None = None  # (d + 1, d + 1) float64, of states with a 1 behind them
        self._products: Tensor | None = None  # (d + 1, d) float64, of these and what the later layers added
        self._map: Tensor | None = None  # (d + 1, d)

    @property
    def taps(self) -> frozenset[int]:
        """Layers whose states it learns from; none once it has seen enough."""
        return frozenset(self._layers) if self._learns and self._seen < _MOST_ROWS else frozenset()

    def logits(self, hidden: Tensor) -> Tensor:
        """(n, V) from (n, d) states of the early layer."""
        if self._map is not None:
            hidden = hidden + (_with_one(hidden.float()) @ self._map).to(hidden.dtype)
        return self._target.head(hidden)

    def learn(self, reading: Reading) -> None:
        """Learn from the nodes that were read to the end."""
        early, late = (reading.taps.get(layer) for layer in self._layers)
        if early is None or late is None or not self.taps:
            return
        rows = [reading.row(node) for node in sorted(reading.alive)]
        given = _with_one(early[rows].double())
        added = late[rows].double() - early[rows].double()
        if self._squares is None or self._products is None:
            self._squares, self._products = given.T @ given, given.T @ added
        else:
            self._squares += given.T @ given
            self._products += given.T @ added
        self._seen += len(rows)
        if self._seen >= self._fit_at:
            self._fit_at *= 2
            self._map = _fitted(self._squares, self._products, self._seen).float()


def _fitted(squares: Tensor, products: Tensor, count: int) -> Tensor:
    """(d + 1, d) ridge regression from its sums over `count` states."""
    held_back = _SHRINKAGE * float(squares.diagonal().mean()) / count
    found: Tensor = torch.linalg.solve(squares + held_back * torch.eye(len(squares)).to(squares), products)
    return found


def _with_one(states: Tensor) -> Tensor:
    """(n, d + 1): every state with a 1 behind it."""
    return torch.cat([states, states.new_ones(len(states), 1)], dim=1)
