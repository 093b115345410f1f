"""Our own decoder for the Llama shape and its relatives: static cache, tree mask, the layer loop in our hands."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import torch
from torch import Tensor

from specchat.core.seams import Counters, OnLayer, Reading, Rider
from specchat.core.tree import TokenTree
from specchat.models.base.cache_rows import Plan, Rows, common_prefix
from specchat.models.base.kv_cache import KVCache
from specchat.models.base.layer_hooks import LayerWatch
from specchat.models.base.network import Network, Pass


class Decoder:
    """Runs a decoder over trees. A node dropped in the middle of a pass is really not computed any further."""

    def __init__(self, network: Network, context_tokens: int, drafts: bool = False) -> None:
        """Nothing read yet.

        Args:
            drafts: its log-probabilities will be asked for, not only what is likeliest.
        """
        self.network = network
        self._drafts = drafts
        self.vocab_size = network.shape.vocab_size
        self.context_tokens = context_tokens
        self.counters = Counters()
        self.device = network.device
        self.cache = KVCache(network.shape.layers, context_tokens, network.keys_together)
        self._rows = Rows()
        # A tree may reach a little past the end of the context before it is cut.
        turns = network.shape.turns(context_tokens + 1024)
        self._turns = tuple(None if table is None else table.to(self.device) for table in turns)

    def twin(self) -> Decoder:
        """The same weights with a cache of its own."""
        return Decoder(self.network, self.context_tokens, self._drafts)

    def cached(self, tokens: Sequence[int]) -> int:
        """How many leading tokens of these the cache holds already."""
        return common_prefix(self._rows.prefix, tokens)

    @torch.inference_mode()
    def prefill(self, tokens: Sequence[int], on_chunk: Callable[[int, int], None] | None = None) -> None:
        """Make the cache hold exactly these tokens, reading only what it does not hold yet."""
        self._rows.read_prefix(tokens, self._run, on_chunk)

    @torch.inference_mode()
    def read(
        self,
        tree: TokenTree,
        new_nodes: Sequence[int] | None = None,
        riders: Sequence[Rider] = (),
        taps: Collection[int] = (),
        on_layer: OnLayer | None = None,
    ) -> Reading:
        """Read nodes of a tree in one pass: all of it, or the new ones."""
        plan = self._rows.plan_tree(tree, new_nodes, riders)
        watch = LayerWatch(tree, plan, taps, on_layer)
        hidden = self._run(plan, [rider.embedding for rider in riders], watch)
        said = self.network.head(hidden[plan.missing :] if plan.missing else hidden, self._drafts)
        self._rows.tree_read(plan)
        return watch.reading(said, len(riders))

    @torch.inference_mode()
    def head(self, hidden: Tensor) -> Tensor:
        """(n, V) logits of (n, d) states: the final norm, then the head. On an early layer's states, an early head."""
        return self.network.head(hidden).logits

    @torch.inference_mode()
    def keep(self, path: Sequence[int]) -> None:
        """Keep the root and the accepted path, forget the rest of the tree."""
        start = len(self._rows.prefix)
        self.cache.keep_rows_(start, self._rows.keep(path))

    def pretend(self, tokens: int) -> None:
        """Act as if so many tokens had been read; their rows hold zeros or stale values."""
        self._rows.pretend(tokens)

    def _run(self, plan: Plan, embeddings: Sequence[Tensor] = (), watch: LayerWatch | None = None) -> Tensor:
        self.counters.passes += 1
        self.counters.rows += len(plan.positions)
        network = self.network
        return network.run(Pass(plan, network.embed, self._turns, self.cache, self.counters, watch, embeddings))
