"""A model without weights: what it says is a function of the text so far. For tests and for trying the interface."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence

import torch
from torch import Tensor

from specchat.core.noise import Noise, Stream
from specchat.core.seams import Counters, OnLayer, Reading, Rider
from specchat.core.tree import TokenTree
from specchat.models.base.cache_rows import Plan, Rows, common_prefix, surviving

Says = Callable[[Sequence[int]], Tensor]
"""(tokens so far) → (V,) logits of the next one."""


class ScriptedModel:
    """Computes logits from the tokens themselves, with the same bookkeeping of rows as a real model.

    Its single layer's state of a node is the node's logits, so taps, pruning and riders can be tried on it. A
    rider answers for the text in which the greedy continuation stands where the riders stand.

    Args:
        says: (tokens so far) → (V,) logits.
        pace_s: how long a pass pretends to take.
    """

    def __init__(self, vocab_size: int, says: Says, context_tokens: int = 4096, pace_s: float = 0.0) -> None:
        self.vocab_size = vocab_size
        self.context_tokens = context_tokens
        self.counters = Counters()
        self.device = torch.device("cpu")
        self._says = says
        self._pace_s = pace_s
        self._rows = Rows()

    def twin(self) -> ScriptedModel:
        """The same script with a memory of its own."""
        return ScriptedModel(self.vocab_size, self._says, self.context_tokens, self._pace_s)

    def cached(self, tokens: Sequence[int]) -> int:
        """How many leading tokens of these the cache holds already."""
        return common_prefix(self._rows.prefix, tokens)

    def prefill(self, tokens: Sequence[int], on_chunk: Callable[[int, int], None] | None = None) -> None:
        """Remember the tokens; there is nothing to compute."""
        self._rows.read_prefix(tokens, self._count, on_chunk)

    def read(
        self,
        tree: TokenTree,
        new_nodes: Sequence[int] | None = None,
        riders: Sequence[Rider] = (),
        taps: Collection[int] = (),
        on_layer: OnLayer | None = None,
    ) -> Reading:
        """What the script says after every node."""
        plan = self._rows.plan_tree(tree, new_nodes, riders)
        if self._pace_s > 0:  # sleeping for no time at all still gives the processor away
            time.sleep(self._pace_s)
        self._count(plan)
        self._rows.tree_read(plan)
        logits = torch.stack([self._says(self._text(tree, node)) for node in plan.nodes])
        rider_logits = torch.stack([self._rider(tree, riders, i) for i in range(len(riders))]) if riders else None
        stay = on_layer(0, logits, plan.nodes) if on_layer is not None else None
        alive = frozenset(plan.nodes if stay is None else surviving(tree, plan.nodes, stay))
        return Reading(
            nodes=plan.nodes,
            logits=logits,
            alive=alive,
            pruned={node: 0 for node in plan.nodes if node not in alive},
            taps=dict.fromkeys(taps, logits),
            rider_logits=rider_logits,
            rider_states={} if rider_logits is None else dict.fromkeys(taps, rider_logits),
        )

    def head(self, hidden: Tensor) -> Tensor:
        """(n, V) logits: a scripted state is the logits themselves."""
        return hidden

    def keep(self, path: Sequence[int]) -> None:
        self._rows.keep(path)

    def pretend(self, tokens: int) -> None:
        self._rows.pretend(tokens)

    def _count(self, plan: Plan) -> None:
        self.counters.passes += 1
        self.counters.rows += len(plan.positions)
        self.counters.node_layers += len(plan.positions)

    def _text(self, tree: TokenTree, node: int) -> list[int]:
        return [*self._rows.prefix, tree.tokens[0], *tree.path_tokens(node)]

    def _rider(self, tree: TokenTree, riders: Sequence[Rider], index: int) -> Tensor:
        text = self._text(tree, riders[index].parent)
        link: int | None = index
        while link is not None:
            text.append(int(self._says(text).argmax()))
            link = riders[link].after
        return self._says(text)


def random_says(vocab_size: int, seed: int = 0, memory: int = 3, sharpness: float = 2.0) -> Says:
    """A fixed random law: Gumbel-distributed logits that depend on the last `memory` tokens."""
    noise, ids = Noise(seed), torch.arange(vocab_size)

    def says(text: Sequence[int]) -> Tensor:
        return (sharpness * noise.gumbel(Stream.TARGET, 0, ids, salt=tuple(text[-memory:]))).float()

    return says
