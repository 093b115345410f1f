"""Early pruning: after some layers, drop the nodes that the target is unlikely to choose."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specchat.core.budget import Budget
from specchat.core.context import Context
from specchat.core.request import LayerHook
from specchat.core.round import Round
from specchat.core.seams import Drafter, TreePolicy
from specchat.core.tree import ROOT, TokenTree
from specchat.decoding.early_head import EarlyHead


@dataclass(frozen=True)
class EarlyPruning:
    """After one layer, keep a node only if its token is among the most likely ones by an early head at its parent.

    The early head is the target's own, after a map that is learnt while it writes (see `early_head`). A node that goes
    takes its subtree with it and is computed no further. The text stays what it was: a token whose node was
    dropped is emitted as the bonus.

    Reference: Zhong et al., ProPD, arXiv:2402.13485. Differs: the early head is fitted in closed form.

    Args:
        policy: grows the trees.
        head: the early head.
        layer: after which layer, counted from 1.
        keep: how many of the most likely tokens are kept.
    """

    policy: TreePolicy
    head: EarlyHead
    layer: int
    keep: int

    @property
    def keeps_draws(self) -> bool:
        """As its policy: rules judge the whole tree, and an accepted node that was dropped is the bonus."""
        return self.policy.keeps_draws

    @property
    def taps(self) -> Collection[int]:
        """The layers whose states the policy wants, and those that the early head learns from."""
        return self.head.taps.union(self.policy.taps)

    def grow(self, drafter: Drafter, context: Context, budget: Budget) -> TokenTree:
        """The policy's tree; pruning drops nodes only during the pass."""
        return self.policy.grow(drafter, context, budget)

    def observe(self, round: Round) -> None:
        """The early head learns from what was read to the end, and the policy what it can."""
        self.head.learn(round.reading)
        self.policy.observe(round)

    def hooks(self, tree: TokenTree) -> Sequence[LayerHook]:
        """The policy's own looks, and one that prunes; a plain round needs none."""
        if tree.drafted == 0:
            return self.policy.hooks(tree)
        prune = LayerHook(frozenset({self.layer - 1}), lambda layer, hidden, nodes: self._likely(tree, hidden, nodes))
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
        return {ROOT, *(node for node, rank in zip(asked, ranks.tolist(), strict=True) if rank < self.keep)}
