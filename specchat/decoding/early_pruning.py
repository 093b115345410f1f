"""Early pruning: after some layers, drop the nodes that the target is unlikely to choose."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from specchat.core.budget import Budget
from specchat.core.context import Context
from specchat.core.reading import Reading
from specchat.core.request import LayerHook
from specchat.core.round import Round
from specchat.core.seams import Drafter, Model, TreePolicy
from specchat.core.tree import ROOT, TokenTree


class EarlyPruning(TreePolicy):
    """After one layer, keep a node only if its token is among the most likely ones by an early head at its parent.

    The early head is the target's own, after a map that is learnt while it writes (`EarlyHead`). A node that goes
    takes its subtree with it and is computed no further. The text stays what it was: a token whose node was
    dropped is emitted as the bonus.

    Reference: Zhong et al., ProPD, arXiv:2402.13485. Differs: the early head is fitted in closed form.

    Args:
        layer: after which layer, counted from 1.
        keep: how many of the most likely tokens are kept.
    """

    def __init__(self, policy: TreePolicy, head: EarlyHead, layer: int, keep: int) -> None:
        self.policy, self.head = policy, head
        self._layer, self._keep = layer, keep
        # As its policy: rules judge the whole tree, and an accepted node that was dropped is the bonus.
        self.keeps_draws, self.unsuited_draws = policy.keeps_draws, policy.unsuited_draws

    @property
    def taps(self) -> Collection[int]:
        return self.head.taps.union(self.policy.taps)

    def grow(self, drafter: Drafter, context: Context, budget: Budget) -> TokenTree:
        return self.policy.grow(drafter, context, budget)

    def observe(self, round: Round) -> None:
        """The early head learns from what was read to the end, and the policy what it can."""
        self.head.learn(round.reading)
        self.policy.observe(round)

    def hooks(self, tree: TokenTree) -> Sequence[LayerHook]:
        """The policy's own looks, and one that prunes; a plain round needs none."""
        if tree.drafted == 0:
            return self.policy.hooks(tree)
        prune = LayerHook(frozenset({self._layer - 1}), lambda layer, hidden, nodes: self._likely(tree, hidden, nodes))
        return [*self.policy.hooks(tree), prune]

    def _likely(self, tree: TokenTree, hidden: Tensor, nodes: Sequence[int]) -> set[int]:
        places = {node: place for place, node in enumerate(nodes)}
        parents = [node for node in nodes if tree.children(node)]
        logits = self.head.logits(hidden[[places[node] for node in parents]])
        row_of = {parent: row for row, parent in enumerate(parents)}
        asked = [node for node in nodes if node != ROOT]
        rows = logits[[row_of[tree.parents[node]] for node in asked]]
        tokens = torch.tensor([tree.tokens[node] for node in asked], device=rows.device)
        ranks = (rows > rows.gather(1, tokens[:, None])).sum(dim=1)
        return {ROOT, *(node for node, rank in zip(asked, ranks.tolist(), strict=True) if rank < self._keep)}


_FIRST_ROWS, _MOST_ROWS = 1024, 8192
"""Nodes seen before the map is first fitted, and after which nothing more is learnt."""

_LARGEST_STATE = 2048
"""Numbers in a state above which the map is of low rank: a full one would take too much memory and time."""

_RANK, _BASIS_ROWS = 256, 512
"""Principal directions of the early states that a map of low rank reads, and nodes that they are computed from.
With SmolLM2's 576 numbers in a state it names the target's token among 8 in 0.92 of cases where a full map does in
0.94, after layer 24; without a map 0.59. A rank of 128 gives 0.87."""

_SHRINKAGE = 100.0
"""How strongly the map is held back, in mean squares of a state's numbers."""


class EarlyHead:
    """The target's final norm and head on an early layer's states, after a map that makes them last layer's states.

    The map is affine: least squares over the nodes that rounds have read to the end, held back towards no change at
    all. It is fitted anew whenever twice as many nodes were seen. Before the first fit states are taken as they are.
    Where states are wide, or memory is limited, it reads the principal directions of the first states alone.

    Reference: Zhong et al., ProPD, arXiv:2402.13485; Belrose et al., Tuned Lens, arXiv:2303.08112. Differs: fitted in
    closed form to the target's own states while it writes, without training; of low rank where states are wide.

    Args:
        layer: after which layer, counted from 1.
        learns: whether the map may be learnt.
        low_rank: whether the map is of low rank although states are narrow enough for a full one.
    """

    def __init__(self, target: Model, layer: int, learns: bool = True, low_rank: bool = False) -> None:
        self._target = target
        self._layers = (layer - 1, target.layers - 1)
        self._learns = learns and layer < target.layers
        self._seen, self._fit_at = 0, _FIRST_ROWS
        self._basis: Tensor | None = None  # (d, r) orthonormal directions that the map reads; None: all
        self._first: list[tuple[Tensor, Tensor]] | None = (
            [] if low_rank or target.hidden_size > _LARGEST_STATE else None
        )
        self._squares: Tensor | None = None  # (r + 1, r + 1) float64, of states with a 1 behind them
        self._products: Tensor | None = None  # (r + 1, d) float64, of these and what the later layers added
        self._map: Tensor | None = None  # (r + 1, d)

    @property
    def taps(self) -> frozenset[int]:
        """Layers whose states it learns from; none once it has seen enough."""
        return frozenset(self._layers) if self._learns and self._seen < _MOST_ROWS else frozenset()

    def logits(self, hidden: Tensor) -> Tensor:
        """(n, V) from (n, d) states of the early layer."""
        if self._map is not None:
            hidden = hidden + (self._given(hidden.float()) @ self._map).to(hidden.dtype)
        return self._target.head(hidden)

    def learn(self, reading: Reading) -> None:
        """Learn from the nodes that were read to the end."""
        early, late = (reading.taps.get(layer) for layer in self._layers)
        if early is None or late is None or not self.taps:
            return
        rows = [reading.row(node) for node in sorted(reading.alive)]
        self._seen += len(rows)
        if self._first is None:
            self._add(early[rows], late[rows])
        else:
            self._first.append((early[rows].float(), late[rows].float()))
            if self._seen >= _BASIS_ROWS:
                self._basis = _principal_directions(torch.cat([states for states, _ in self._first]))
                for states, later in self._first:
                    self._add(states, later)
                self._first = None
        if self._seen >= self._fit_at and self._squares is not None and self._products is not None:
            self._fit_at *= 2
            self._map = _fitted(self._squares, self._products, self._seen).float()

    def _add(self, early: Tensor, late: Tensor) -> None:
        """Add (n, d) states of both layers to the sums of the regression."""
        given = self._given(early.double())
        added = late.double() - early.double()
        if self._squares is None or self._products is None:
            self._squares, self._products = given.T @ given, given.T @ added
        else:
            self._squares += given.T @ given
            self._products += given.T @ added

    def _given(self, states: Tensor) -> Tensor:
        """(n, r + 1) input of the map, from (n, d) states: what it reads of them, and a 1."""
        read = states if self._basis is None else states @ self._basis.to(states.dtype)
        return torch.cat([read, read.new_ones(len(read), 1)], dim=1)


def low_rank_bytes(hidden: int) -> int:
    """The most memory that a map of low rank takes while it is learnt, for states of `hidden` numbers."""
    rows, width = _RANK + 1, hidden
    collecting = 4 * 2 * _BASIS_ROWS * width + 4 * 8 * _BASIS_ROWS**2
    fitting = width * (4 * _RANK + (8 + 8 + 4) * rows) + 3 * 8 * rows**2
    return max(collecting, fitting)


def _principal_directions(states: Tensor) -> Tensor:
    """(d, r) orthonormal directions along which (n, d) states are longest; r ≤ n and ≤ d, at most `_RANK`."""
    states = states.double()
    lengths, mixtures = torch.linalg.eigh(states @ states.T)
    rank = min(_RANK, *states.shape)
    kept = (lengths[-rank:] > 1e-9 * lengths[-1]).nonzero()[:, 0] + len(lengths) - rank
    directions: Tensor = states.T @ mixtures[:, kept] / lengths[kept].sqrt()
    return directions.float()


def _fitted(squares: Tensor, products: Tensor, count: int) -> Tensor:
    """(r + 1, d) ridge regression from its sums over `count` states."""
    held_back = _SHRINKAGE * float(squares.diagonal().sum()) / (products.shape[1] + 1) / count
    found: Tensor = torch.linalg.solve(squares + held_back * torch.eye(len(squares)).to(squares), products)
    return found
