"""Early pruning: after some layers, drop the nodes that the target itself would hardly choose any more."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specchat.core.request import OnLayer
from specchat.core.seams import Model
from specchat.core.tree import ROOT, TokenTree


@dataclass(frozen=True)
class EarlyPruning:
    """After one layer, keep a node only if its token is among the most likely ones by an early head at its parent.

    The early head is the target's final norm and head on that layer's state. A node that goes takes its subtree with
    it and is computed no further. The text stays what it was: a token that is no child any more is the bonus.

    Reference: Zhong et al., ProPD, arXiv:2402.13485. Differs: the early head is not trained.

    Args:
        layer: after which layer, counted from 1.
        keep: how many of the most likely tokens are kept.
    """

    target: Model
    layer: int
    keep: int

    def watching(self, tree: TokenTree) -> OnLayer | None:
        """What to call after each layer of a pass over this tree; nothing for a plain round."""
        if tree.drafted == 0:
            return None

        def on_layer(layer: int, hidden: Tensor, nodes: Sequence[int]) -> Collection[int] | None:
            return self._likely(tree, hidden, nodes) if layer == self.layer - 1 else None

        return on_layer

    def _likely(self, tree: TokenTree, hidden: Tensor, nodes: Sequence[int]) -> set[int]:
        places = {node: place for place, node in enumerate(nodes)}
        parents = [node for node in nodes if tree.children(node)]
        logits = self.target.head(hidden[[places[node] for node in parents]])
        row_of = {parent: row for row, parent in enumerate(parents)}
        asked = [node for node in nodes if node != ROOT]
        rows = logits[[row_of[tree.parents[node]] for node in asked]]
        tokens = torch.tensor([tree.tokens[node] for node in asked], device=rows.device)
        ranks = (rows > rows.gather(1, tokens[:, None])).sum(dim=1)
        return {ROOT, *(node for node, rank in zip(asked, ranks.tolist(), strict=True) if rank < self.keep)}
