"""Our own decoder for the Llama shape and its relatives: static cache, tree mask, the layer loop in our hands."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import torch
from torch import Tensor

from specchat.core.reading import Counters, Reading
from specchat.core.request import LOGITS_ONLY, PassRequest, Rider
from specchat.core.states import StateTap
from specchat.core.tree import TokenTree
from specchat.models.base.cache_rows import Plan, Rows, common_prefix
from specchat.models.base.kv_cache import KVCache
from specchat.models.base.layer_hooks import LayerWatch
from specchat.models.base.network import Network, Pass
from specchat.models.base.sub_layers import SubLayers


class Decoder:
    """Runs a decoder over trees. A node dropped in the middle of a pass is really not computed any further."""

    def __init__(
        self,
        network: Network,
        context_tokens: int,
        drafts: bool = False,
        parts: SubLayers | None = None,
        source: Decoder | None = None,
    ) -> None:
        """Nothing read yet.

        Args:
            drafts: its log-probabilities will be asked for, not only what is likeliest.
            parts: what of the network is computed; None for all.
            source: the decoder whose rows `borrow` copies.
        """
        shape = network.shape
        self.network = network
        self._drafts = drafts
        self._parts = parts or SubLayers.of_all(shape.layers)
        self._source = source
        self.vocab_size = shape.vocab_size
        self.hidden_size = shape.hidden
        self.layers = shape.layers
        self.context_tokens = context_tokens
        self.counters = Counters()
        self.device = network.device
        self.cache = KVCache(self._parts.attention, context_tokens, network.keys_together)
        self._rows = Rows()
        # A tree may reach a little past the end of the context before it is cut.
        turns = shape.turns(context_tokens + 1024) if source is None else source.rotations
        self.rotations: tuple[Tensor | None, ...] = tuple(
            None if table is None else table.to(self.device) for table in turns
        )

    def twin(self) -> Decoder:
        """The same weights with a cache of its own."""
        return self.view()

    def view(
        self,
        layers: Collection[int] | None = None,
        skip_attention: Collection[int] = (),
        skip_mlp: Collection[int] = (),
    ) -> Decoder:
        """The same weights without some layers or halves of layers, with a cache of its own for what is left."""
        parts = self._parts.without(layers, skip_attention, skip_mlp)
        return Decoder(self.network, self.context_tokens, self._drafts, parts, source=self)

    @torch.inference_mode()
    def embed(self, tokens: Sequence[int]) -> Tensor:
        """(n, d) what the first layer gets for these tokens."""
        return self.network.embed(tokens)

    def cached(self, tokens: Sequence[int]) -> int:
        """How many leading tokens of these the cache holds already."""
        return common_prefix(self._rows.prefix, tokens)

    @torch.inference_mode()
    def prefill(
        self,
        tokens: Sequence[int],
        on_chunk: Callable[[int, int], None] | None = None,
        tap: StateTap | None = None,
    ) -> None:
        """Make the cache hold exactly these tokens, reading only what it does not hold yet."""

        def read(plan: Plan) -> None:
            watch = None if tap is None else LayerWatch(plan, PassRequest(taps=tap.layers))
            self._run(plan, watch=watch)
            if tap is not None and watch is not None and (states := watch.text_states()) is not None:
                tap.take(states)

        self._rows.read_prefix(tokens, read, on_chunk)

    @torch.inference_mode()
    def borrow(self, tokens: Sequence[int], positions: Sequence[int]) -> None:
        """Hold copies of the source's rows at these positions of a text, and nothing else of it."""
        assert self._source is not None, "rows are borrowed from the model that this one was made from"
        held = self._source.cached(tokens)
        some = [position for position in positions if position < held]
        self.cache.copy_rows_(self._source.cache, self._source._rows.at(some))
        self._rows.borrow(tokens[:held], some)

    @torch.inference_mode()
    def read(
        self, tree: TokenTree, new_nodes: Sequence[int] | None = None, request: PassRequest = LOGITS_ONLY
    ) -> Reading:
        """Read nodes of a tree in one pass: all of it, or the new ones."""
        plan = self._rows.plan_tree(tree, new_nodes, request.riders)
        watch = LayerWatch(plan, request, tree)
        hidden = self._run(plan, request.riders, watch)
        said = self.network.head(hidden[plan.missing :] if plan.missing else hidden, self._drafts)
        self._rows.tree_read(plan)
        return watch.reading(said)

    @torch.inference_mode()
    def head(self, hidden: Tensor) -> Tensor:
        """(n, V) logits of (n, d) states: the final norm, then the head. On an early layer's states, an early head."""
        return self.network.head(hidden).logits

    def head_rows(self, tokens: Sequence[int]) -> Tensor:
        """(n, d) float32 rows of the head for these tokens, with the final norm's factors in them."""
        return self.network.head_rows(tokens)

    @torch.inference_mode()
    def keep(self, path: Sequence[int]) -> None:
        """Keep the root and the accepted path, forget the rest of the tree."""
        start = self._rows.held
        self.cache.keep_rows_(start, self._rows.keep(path))

    def pretend(self, tokens: int) -> None:
        """Act as if so many tokens had been read; their rows hold zeros or stale values."""
        self._rows.pretend(tokens)

    def _run(self, plan: Plan, riders: Sequence[Rider] = (), watch: LayerWatch | None = None) -> Tensor:
        self.counters.passes += 1
        self.counters.rows += len(plan.positions)
        network = self.network
        running = Pass(plan, network.embed, self.rotations, self.cache, self.counters, self._parts, watch, riders)
        return network.run(running)
