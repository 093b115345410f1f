"""Our own decoder for the Llama shape and its relatives, over the tree of one text, or over those of several texts."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specchat.core.drafting_networks import ChunkScores
from specchat.core.reading import Counters, HeadOutput, Reading
from specchat.core.request import (
    CHUNK_TOKENS,
    DEFAULT_REQUEST,
    DEVICE_CHUNK_TOKENS,
    ExtraRow,
    HeadNeeds,
    HeadOfSome,
    PassRequest,
)
from specchat.core.tree import TokenTree
from specchat.errors import NotNumbers
from specchat.models.decoder.cache_rows import PassPlan
from specchat.models.decoder.cached_model import CachedModel
from specchat.models.decoder.kv_cache import KVCache, RotationTables
from specchat.models.decoder.layer_hooks import LayerWatch, reading_of_all
from specchat.models.decoder.network import Network, Pass, SubLayers


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
        self.name = name
        self.guessable: Sequence[int] = guessable
        self._parts = parts or SubLayers.of_all(shape.layers)
        self.vocab_size = shape.vocab_size
        self.hidden_size = shape.hidden
        self.layers = shape.layers
        self.context_tokens = context_tokens
        self.counters = Counters()
        self.device = network.device
        self.cache: KVCache = network.new_cache(self._parts.attention, context_tokens, source.cache if source else None)
        super().__init__(self.cache, source)
        self._like, self._same_bits = network.like, network.kernels == "native"
        if source is not None:
            self.chunk_bytes = source.chunk_bytes
        tables = RotationTables(shape, self.device, context_tokens) if source is None else source.rotations
        self.rotations: RotationTables = tables

    def _of_parts(self, parts: SubLayers) -> Decoder:
        return Decoder(self.network, self.context_tokens, self._drafts, parts, self, self.name, self.guessable)

    def for_joint_passes(self) -> Decoder:
        """The same weights with a cache of its own, for trees that are read with those of others by `read_together`."""
        network = self.network.unrecorded
        return Decoder(network, self.context_tokens, source=self, name=self.name, guessable=self.guessable)

    @torch.inference_mode()
    def embed(self, tokens: Sequence[int]) -> Tensor:
        return self.network.embed(tokens)

    def read(
        self, tree: TokenTree, new_nodes: Sequence[int] | None = None, request: PassRequest = DEFAULT_REQUEST
    ) -> Reading:
        """Read nodes of a tree in one pass: all of it, or the new ones.

        Raises:
            NotNumbers: logits are none, where the head looks at them. Elsewhere who draws from them raises it.
        """
        running = self.planned(tree, request, new_nodes)
        self.count(running)
        try:
            if request.head is None:
                said = self.network.read(running, self._drafts, request.needs)
            else:
                said = self._said_by(request.head, running)
        except NotNumbers:
            raise NotNumbers(self.name) from None
        return self.read_to_end(running, said)

    @property
    def joint_weights(self) -> Network | None:
        return self.network

    def joint_groups(self, planned: Sequence[Pass]) -> list[list[int]]:
        return self.network.joint_groups(planned)

    def read_joined(self, joined: Sequence[tuple[Decoder, Pass]], needs: Sequence[HeadNeeds]) -> list[Reading]:
        for model, running in joined:
            model.count(running)
        try:
            said = self.network.read_together([running for _, running in joined], needs)
        except NotNumbers:
            raise NotNumbers(self.name) from None
        return [model.read_to_end(running, output) for (model, running), output in zip(joined, said, strict=True)]

    def planned(self, tree: TokenTree, request: PassRequest, new_nodes: Sequence[int] | None = None) -> Pass:
        """The pass that `read` computes."""
        plan = self.rows.plan_tree(tree, new_nodes, request.extra_rows)
        watch = LayerWatch(plan, request, tree) if request.watched else None
        return self._pass(plan, watch, request.extra_rows)

    def read_to_end(self, running: Pass, said: HeadOutput) -> Reading:
        """The reading of a pass that was computed; the rows of its tree are valid from now on."""
        plan, watch = running.plan, running.watch
        self.rows.tree_read(plan)
        return reading_of_all(plan, said) if watch is None else watch.reading(said)

    @torch.inference_mode()
    def _said_by(self, head: HeadOfSome, running: Pass) -> HeadOutput:
        return head.after(running.saying(self.network.run(running)))

    @torch.inference_mode()
    def head(self, hidden: Tensor) -> Tensor:
        return self.network.head(hidden).logits

    def head_rows(self, tokens: Sequence[int]) -> Tensor:
        return self.network.head_rows(tokens)

    @torch.inference_mode()
    def trimmed_head(self, tokens: Sequence[int]) -> HeadOfSome:
        return self.network.trimmed_head(tokens)

    @torch.inference_mode()
    def chunk_scores(self, tokens: Sequence[int], chunk_tokens: int) -> ChunkScores:
        source = self._copied_from()
        plan = source.rows.plan_aside(tokens)
        self.counters.count(1)
        embed, tables = self.network.embed, self.rotations.until(plan.end)
        running = Pass(plan, embed, tables, source.cache, self.counters, source._parts)
        scores = self.network.chunk_scores(running, chunk_tokens)
        scores[sorted(self._windowed)] = 0
        return ChunkScores(plan.common, scores)

    @torch.inference_mode()
    def copy_rows_by_layer(self, tokens: Sequence[int], positions: Tensor) -> None:
        """Hold copies of the source's rows of a text, in each layer those at its own positions.

        Args:
            positions: (layers, n) or, for each key head, (layers, heads, n) int64, ascending; all of tokens that the
                source holds. The same for all layers that see a window: what those see depends on positions.
        """
        source, windowed = self._copied_from(), self._windowed
        assert source.rows.whole, "a row of the source is that of its position"
        held = source.cached(tokens)
        positions = positions[:, None] if positions.dim() == 2 else positions
        near = positions[sorted(windowed)].flatten(0, 1) if windowed else positions[0, :1]
        assert bool((near == near[0]).all()), "layers that see a window hold the same positions"
        assert not positions.numel() or int(positions.max()) < held, "what is copied was read"
        for layer in self.cache.place_of:
            heads = positions[layer].tolist()
            if len(heads) == 1 or layer in windowed:
                self.cache.copy_rows_(source.cache, heads[0], layers=(layer,))
            else:
                self.cache.copy_rows_by_head_(source.cache, heads, layer)
        self.rows.copy_rows_from(tokens[:held], near[0].tolist(), each_its_own=True)

    @property
    def _windowed(self) -> frozenset[int]:
        """Layers that see only a window of the text."""
        kinds, kind_of = self.network.shape.attention_kinds, self.network.shape.kind_of
        return frozenset(layer for layer, kind in enumerate(kind_of) if kinds[kind].window is not None)

    def cache_bytes(self, tokens: int, longest: int | None = None) -> int:
        """The most that its cache, and those of models made from it, take until each holds so many tokens, with what
        their tables of rotations take beyond what was there from the start."""
        return self.cache.bytes_until(tokens, self.network.like, longest) + self.rotations.bytes_until(tokens, longest)

    def pass_bytes(self, rows: int, tokens: int, logits: bool = True) -> int:
        return self.network.pass_bytes(rows, tokens + rows, logits)

    def chunk_after(self, tokens: int) -> int:
        chunk = DEVICE_CHUNK_TOKENS if self.device.type == "cuda" else CHUNK_TOKENS
        while chunk > CHUNK_TOKENS and self.pass_bytes(chunk, tokens, logits=False) > self.chunk_bytes:
            chunk //= 2
        return chunk

    def limit_context_(self, tokens: int) -> None:
        self.context_tokens = self.cache.max_rows = self.rotations.context_tokens = tokens
        self.cache.in_steps = self.device.type == "cpu"
        self.cache.reserve_(self.network.like)
        if self.cache.in_one:
            self.rotations.reserve_()

    def _read_text(self, plan: PassPlan, watch: LayerWatch | None) -> Tensor:
        running = self._pass(plan, watch)
        self.count(running)
        return self.network.run(running)

    def count(self, running: Pass) -> None:
        """A pass is computed now."""
        self.counters.count(running.plan.rows)

    def _pass(self, plan: PassPlan, watch: LayerWatch | None, extra_rows: Sequence[ExtraRow] = ()) -> Pass:
        network, tables = self.network, self.rotations.until(plan.end)
        return Pass(plan, network.embed, tables, self.cache, self.counters, self._parts, watch, extra_rows)
