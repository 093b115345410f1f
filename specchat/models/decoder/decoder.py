"""Our own decoder for the Llama shape and its relatives: static cache, tree mask, a layer loop that can drop rows."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specchat.core.drafting_networks import ChunkScores
from specchat.core.reading import Counters, HeadOutput, Reading
from specchat.core.request import DEFAULT_REQUEST, ExtraRow, HeadOfSome, PassRequest
from specchat.core.tree import TokenTree
from specchat.errors import NotNumbers
from specchat.models.base.cache_rows import Plan
from specchat.models.base.cached_model import CachedModel
from specchat.models.base.cached_text import CachedText
from specchat.models.base.kv_cache import KVCache
from specchat.models.base.layer_hooks import LayerWatch, reading_of_all
from specchat.models.base.network import Network, Pass
from specchat.models.base.sub_layers import SubLayers
from specchat.models.decoder.rotation_tables import RotationTables


class Decoder(CachedModel["Decoder"]):
    """Runs a decoder over trees. A node dropped in the middle of a pass is really not computed any further."""

    def __init__(
        self,
        network: Network,
        context_tokens: int,
        drafts: bool = False,
        parts: SubLayers | None = None,
        source: Decoder | None = None,
        name: str = "",
        guessable: Sequence[int] = (),
    ) -> None:
        """Nothing read yet.

        Args:
            drafts: its log-probabilities will be asked for, not only what is likeliest.
            parts: what of the network is computed; None for all.
            source: the decoder whose rows `copy_rows_from` copies.
            name: of the model, for errors.
            guessable: the tokens that it was trained to guess, the most frequent first; empty for all.
        """
        shape = network.shape
        self.network = network
        self._drafts = drafts
        self._name = name
        self.guessable: Sequence[int] = guessable
        self._parts = parts or SubLayers.of_all(shape.layers)
        self.vocab_size = shape.vocab_size
        self.hidden_size = shape.hidden
        self.layers = shape.layers
        self.context_tokens = context_tokens
        self.counters = Counters()
        self.device = network.device
        self.cache: KVCache = KVCache(
            self._parts.attention,
            context_tokens,
            network.key_interleave,
            network.row_copies,
            source.cache if source else None,
        )
        super().__init__(CachedText(self.cache, source._text if source else None))
        self._source = source
        tables = RotationTables(shape, self.device, context_tokens) if source is None else source.rotations
        self.rotations: RotationTables = tables

    def _of_parts(self, parts: SubLayers) -> Decoder:
        return Decoder(
            self.network,
            self.context_tokens,
            self._drafts,
            parts,
            source=self,
            name=self._name,
            guessable=self.guessable,
        )

    @torch.inference_mode()
    def embed(self, tokens: Sequence[int]) -> Tensor:
        """(n, d) what the first layer gets for these tokens."""
        return self.network.embed(tokens)

    def read(
        self, tree: TokenTree, new_nodes: Sequence[int] | None = None, request: PassRequest = DEFAULT_REQUEST
    ) -> Reading:
        """Read nodes of a tree in one pass: all of it, or the new ones.

        Raises:
            NotNumbers: logits are none, where the head looks at them. Elsewhere who draws from them raises it.
        """
        plan = self._text.rows.plan_tree(tree, new_nodes, request.extra_rows)
        watch = LayerWatch(plan, request, tree) if request.watched else None
        running = self._pass(plan, watch, request.extra_rows)
        try:
            if request.head is None:
                said = self.network.read(running, self._drafts, request.needs)
            else:
                said = self._said_by(request.head, running)
        except NotNumbers:
            raise NotNumbers(self._name) from None
        self._text.rows.tree_read(plan)
        return reading_of_all(plan, said) if watch is None else watch.reading(said)

    @torch.inference_mode()
    def _said_by(self, head: HeadOfSome, running: Pass) -> HeadOutput:
        return head.after(self.network.run(running)[running.plan.missing :])

    @torch.inference_mode()
    def head(self, hidden: Tensor) -> Tensor:
        """(n, V) logits of (n, d) states: the final norm, then the head. On an early layer's states, an early head."""
        return self.network.head(hidden).logits

    def head_rows(self, tokens: Sequence[int]) -> Tensor:
        """(n, d) float32 rows of the head for these tokens, with the final norm's factors in them."""
        return self.network.head_rows(tokens)

    @torch.inference_mode()
    def trimmed_head(self, tokens: Sequence[int]) -> HeadOfSome:
        """A head with rows for these tokens alone."""
        return self.network.trimmed_head(tokens)

    @torch.inference_mode()
    def chunk_scores(self, tokens: Sequence[int], chunk_tokens: int) -> ChunkScores:
        """Score the chunks of a text that the source holds, by the queries of the first token that it does not hold."""
        source = self._source
        assert source is not None, "rows are borrowed from the decoder that this one was made from"
        plan = source._text.rows.plan_aside(tokens)
        self.counters.passes += 1
        self.counters.rows += 1
        embed, tables = self.network.embed, self.rotations.until(plan.end)
        running = Pass(plan, embed, tables, source.cache, self.counters, source._parts)
        scores = self.network.chunk_scores(running, chunk_tokens)
        scores[sorted(self._windowed)] = 0
        return ChunkScores(plan.common, scores)

    def copy_rows_by_layer(self, tokens: Sequence[int], positions: Tensor) -> None:
        """Hold copies of the source's rows of a text, in each layer those at its own positions."""
        self._text.copy_rows_by_layer(tokens, positions, self._windowed)

    @property
    def _windowed(self) -> frozenset[int]:
        """Layers that see only a window of the text."""
        kinds, kind_of = self.network.shape.attention_kinds, self.network.shape.kind_of
        return frozenset(layer for layer, kind in enumerate(kind_of) if kinds[kind].window is not None)

    def cache_bytes(self, tokens: int, longest: int | None = None) -> int:
        """The most that its cache, and those of its twins and views, take until each holds so many tokens.

        With what their tables of rotations take beyond what was there from the start.
        """
        return self.cache.bytes_until(tokens, self.network.like, longest) + self.rotations.bytes_until(tokens, longest)

    def pass_bytes(self, rows: int, tokens: int, logits: bool = True) -> int:
        """The most memory that such a pass takes on top of the caches, its result included."""
        return self.network.pass_bytes(rows, tokens + rows, logits)

    def limit_context_(self, tokens: int) -> None:
        """Take no longer texts than this. In place; its cache grows no further."""
        self.context_tokens = self.cache.max_rows = self.rotations.context_tokens = tokens

    def _read_text(self, plan: Plan, watch: LayerWatch | None) -> Tensor:
        return self.network.run(self._pass(plan, watch))

    def _pass(self, plan: Plan, watch: LayerWatch | None, extra_rows: Sequence[ExtraRow] = ()) -> Pass:
        """A pass to be computed now. Counted."""
        self.counters.passes += 1
        self.counters.rows += plan.rows
        network, tables = self.network, self.rotations.until(plan.end)
        return Pass(plan, network.embed, tables, self.cache, self.counters, self._parts, watch, extra_rows)
