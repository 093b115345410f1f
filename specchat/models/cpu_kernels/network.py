"""A decoder's layers in C: the rows of a tree get the bits that plain decoding would give them."""

from __future__ import annotations

import ctypes
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial, reduce
from itertools import accumulate, pairwise
from operator import or_

import torch
from torch import Tensor

from specchat.core.reading import HeadOutput
from specchat.core.request import CHUNK_TOKENS, EVERYTHING, HeadNeeds, HeadOfSome
from specchat.errors import MemoryLimitTooLow
from specchat.models.cpu_kernels.c_interface import KEYS, CDecoder, CLayer, CProduct, CRows, maybe_pointer, pointer
from specchat.models.cpu_kernels.kernels import kernels_for
from specchat.models.cpu_kernels.linear import GatheredHead
from specchat.models.cpu_kernels.logits_buffer import BEST, FEW, LogitsBuffer, SpareMemory, StatesAndHead
from specchat.models.cpu_kernels.packing import Arena, Packer, Product, RowReader, ShareOut
from specchat.models.cpu_kernels.pass_rows import AdapterTables, PassRows, WholePasses, as_floats, read_together
from specchat.models.cpu_kernels.streamed_weights import (
    LEAST_LAYERS,
    LayerFile,
    StreamedLayers,
    WeightLimit,
    aligned,
    packed_layers,
)
from specchat.models.decoder.kv_cache import KVCache, zeroed_bytes
from specchat.models.decoder.network import Network, Pass
from specchat.models.decoder.shape import Shape
from specchat.models.decoder.trimmed_head import TrimmedHead
from specchat.models.decoder.weight_check import prepared
from specchat.models.weights.weight_source import WeightSource, head_rows
from specchat.settings import memory_text

_MATRICES = ("q", "k", "v", "o", "gate", "up", "down")
_NORMS = {
    **dict.fromkeys(("input_norm", "mlp_norm"), "hidden"),
    **dict.fromkeys(("q_norm", "k_norm"), "head_dim"),
    **dict.fromkeys(("post_attention_norm", "post_mlp_norm"), "hidden"),
}
"""Norms of a layer in the order that C has them, and which of the shape's sizes each has."""


@dataclass(frozen=True)
class NativeLayer:
    """One layer's weights."""

    norms: tuple[Tensor | None, ...]  # in the order of `_NORMS`
    kind: int
    products: tuple[Product, ...]  # q, k, v, o, gate, up, down

    def without_weights(self) -> NativeLayer:
        """Its norms and biases alone."""
        nothing = torch.empty(0, dtype=torch.uint8)
        return replace(self, products=tuple(replace(product, data=nothing) for product in self.products))

    def as_c(self, index: int, shape: Shape) -> CLayer:
        q, k, v, o, gate, up, down = (product.as_c() for product in self.products)
        norms = [
            maybe_pointer(f"layer {index}, {name}", norm, torch.float32, getattr(shape, size))
            for (name, size), norm in zip(_NORMS.items(), self.norms, strict=True)
        ]
        return CLayer(*norms, self.kind, (CProduct * 3)(q, k, v), o, (CProduct * 2)(gate, up), down)


class NativeNetwork(Network):
    """Weights of 4 bits where the file has them (or 8 throughout), activations of 8 bits with a scale per 32 of a row.

    Keys and values are kept in bfloat16. Everything that is not a whole number is added in an order of the row's own,
    so a row's result does not depend on the others.

    Attributes:
        streamed: the layers that are read from a file in every pass, and those that stay in memory; None where all do.
    """

    key_interleave = KEYS

    def __init__(
        self,
        shape: Shape,
        source: WeightSource,
        precision: str,
        processor: str = "native",
        limit: WeightLimit | None = None,
    ) -> None:
        """Pack the weights: into memory, or, where they are more than the limit allows, the layers into a file.

        Raises:
            MemoryLimitTooLow: the limit leaves not even room for the head and two layers.
            PackedWeightsError: the file cannot be written.
        """
        self.shape = shape
        self.precision = precision
        self.device = torch.device("cpu")
        self.kernels = "native"
        self.threads = torch.get_num_threads()
        self._kernels = kernels_for(processor)
        self._source: WeightSource = prepared(source, shape)
        packer = Packer(self._kernels, self._source, precision)
        with ThreadPoolExecutor(self.threads) as pool:
            file, buffers = self._packed_file(packer, limit, pool.map) if limit else (None, ())
            into = [Arena(buffers[0]) if buffers else None for _ in range(shape.layers)]
            self._layers = list(pool.map(partial(self._layer, packer), range(shape.layers), into))
            self._head = packer.product("embed" if shape.tied else "head", share_out=pool.map)
            if not shape.tied:  # as the head it was looked at while it was packed
                packer.check("embed", share_out=pool.map)
        self._norm = self._source.dense("norm")
        stored = self._source.stored("embed")
        plain = stored is not None and self._kernels.packs(stored.kind) and stored.length == shape.hidden
        self.embedding = RowReader(self._kernels, stored) if stored is not None and plain else None
        """Rows of tokens, without the factor on embeddings; None where the source computes them."""
        self.like = torch.empty(shape.kv_heads, shape.head_dim, dtype=torch.bfloat16)
        products = [self._head, *(product for layer in self._layers for product in layer.products)]
        self.nbytes = sum(product.nbytes for product in products)
        self.weights = sum(product.out * product.inputs for product in products)
        told = [layer.as_c(index, shape) for index, layer in enumerate(self._layers)]
        self._c_layers = (CLayer * shape.layers)(*told)
        places = [[*one.qkv, one.o, *one.gate_up, one.down] for one in self._c_layers]
        self.streamed = StreamedLayers(file, places, buffers) if file is not None else None
        self._adapters = AdapterTables(shape)
        self._every_layer = range(shape.layers)
        self._width = shape.vocab_size
        self._spare = SpareMemory(shape.vocab_size)
        self._reads = partial(self._kernels.logprobs, self.threads)
        self._kept: StatesAndHead = shape.hidden, self.head
        self._c = CDecoder(
            *(shape.layers, shape.hidden, shape.heads, shape.kv_heads, shape.head_dim),
            *(shape.inner, shape.vocab_size, len(shape.attention_kinds), shape.gate == "gelu", shape.epsilon),
            *(self._c_layers, pointer("the last norm", self._norm, torch.float32, shape.hidden), self._head.as_c()),
        )
        self._kernels.check("decoder_check", self._c)

    def keep_layers(self, room_bytes: int) -> int:
        """Keep as many streamed layers in memory as fit into so much; the bytes taken. Once, before the first pass."""
        if self.streamed is None:
            return 0
        taken = self.streamed.keep(room_bytes)
        if not self.streamed.streamed:
            self._kept_layers, self.streamed = self.streamed, None
            # What C was told lies elsewhere now, and the buffer can go.
            self._layers = [layer.without_weights() for layer in self._layers]
        return taken

    def new_cache(self, layers: Collection[int], max_rows: int, beside: KVCache | None = None) -> KVCache:
        return KVCache(layers, max_rows, KEYS, self._kernels, beside)

    def embed(self, tokens: Sequence[int]) -> Tensor:
        if self.embedding is None:
            return self._source.embed(list(tokens))
        rows, scale = self.embedding.rows(tokens), self.shape.embedding_scale
        return rows if scale == 1.0 else rows * scale

    def head_rows(self, tokens: Sequence[int]) -> Tensor:
        rows = head_rows(self._source, self.shape.tied, tokens)
        self._source.let_go()  # else the pages of the file that they were read from count as memory of the process
        return rows

    def trimmed_head(self, tokens: Sequence[int]) -> HeadOfSome:
        shape = self.shape
        empty = partial(GatheredHead, self._kernels, self._head, self._norm, shape.epsilon, self.threads)
        return TrimmedHead(empty, torch.tensor(tokens), tokens, list)

    def read(self, running: Pass, logsumexp: bool = False, needs: HeadNeeds = EVERYTHING) -> HeadOutput:
        needs = EVERYTHING if logsumexp or running.shows_logits else needs
        whole = None if self.streamed is not None else self._whole_passes(running.cache)
        if whole is None or not whole.takes(running):
            with torch.inference_mode():
                return self._head_of(running.saying(self.run(running)), logsumexp, needs)
        running.counters.node_layers += running.parts.computed_in_all * len(running.plan.tokens)
        said = self._logits_buffer(len(running.plan.nodes), logsumexp, needs)
        whole.read(running, self._kernels, self.threads, self._c, said)
        return said

    def joint_groups(self, passes: Sequence[Pass]) -> list[list[int]]:
        wholes = [self._whole_passes(running.cache) for running in passes]
        joined = (whole is not None and whole.joins(running) for whole, running in zip(wholes, passes, strict=True))
        return [[place for place, joins in enumerate(joined) if joins]]

    def read_together(self, passes: Sequence[Pass], needs: Sequence[HeadNeeds]) -> list[HeadOutput]:
        together: list[tuple[WholePasses, Pass]] = []
        for running in passes:
            running.counters.node_layers += running.parts.computed_in_all * len(running.plan.tokens)
            whole = self._whole_passes(running.cache)
            assert whole is not None, "only passes that join are read together"
            together.append((whole, running))
        ends = [0, *accumulate(len(running.plan.nodes) for running in passes)]
        said = self._logits_buffer(ends[-1], False, reduce(or_, needs))
        with nullcontext() if self.streamed is None else self.streamed.layer_by_layer() as ready:
            read_together(together, self._kernels, self.threads, self._c, said, ready)
        return [said.part(range(first, last)) for first, last in pairwise(ends)]

    def head(self, hidden: Tensor, logsumexp: bool = False) -> HeadOutput:
        return self._head_of(hidden, logsumexp, EVERYTHING)

    def _head_of(self, hidden: Tensor, logsumexp: bool, needs: HeadNeeds) -> HeadOutput:
        hidden = as_floats(hidden)
        rows = hidden.shape[0]
        said = self._logits_buffer(rows, logsumexp, needs)
        if rows:
            states = pointer("states", hidden, torch.float32, rows, self.shape.hidden)
            if said.states_address is not None:
                ctypes.memmove(said.states_address, states, hidden.nbytes)
            self._kernels.head(self.threads, self._c, states, rows, said)
        return said

    def pass_bytes(self, rows: int, seen: int, logits: bool) -> int:
        shape = self.shape
        states, masks = 4 * rows * shape.hidden, len(shape.attention_kinds) * rows * seen
        said = 4 * (max(rows, FEW) * shape.vocab_size + rows * BEST) if logits else 0
        return states + masks + said + self._kernels.working_bytes(self.threads, self._c, rows, seen)

    def chunk_scores(self, running: Pass, chunk_tokens: int) -> Tensor:
        shape = self.shape
        scores = torch.zeros(shape.layers, shape.heads, running.plan.common // chunk_tokens)
        about = PassRows(running, shape, self.like, self._adapters)
        rows = about.as_c()
        rows.chunks, rows.chunk_rows, rows.chunk_scores = scores.shape[2], chunk_tokens, scores.data_ptr()
        running.counters.node_layers += running.parts.computed(self._every_layer)
        self._compute(running, rows, self._every_layer)
        return scores.view(shape.layers, shape.kv_heads, shape.heads // shape.kv_heads, scores.shape[2]).mean(dim=2)

    def run(self, running: Pass) -> Tensor:
        rows, watch = PassRows(running, self.shape, self.like, self._adapters), running.watch
        for layers in running.segments(self.shape.layers):
            if watch is not None and layers.start in running.entries:
                rows.follow(watch.enter(layers.start, rows.hidden), watch.rows())
            running.counters.node_layers += running.parts.computed(layers) * rows.hidden.shape[0]
            taps = None if watch is None else rows.taps(watch.tapped(layers))
            self._compute(running, rows.as_c(taps), layers)
            if watch is None:
                continue
            if taps is not None:
                watch.keep(taps.states)
            stay = watch.ask_hooks(layers.stop - 1, rows.hidden)
            if stay is not None:
                rows.follow(rows.hidden[stay], watch.rows())
        return rows.hidden

    def _compute(self, running: Pass, rows: CRows, layers: range) -> None:
        compute = partial(self._kernels.layers, self.threads, self._c, rows)
        if self.streamed is None:
            compute(layers)
        else:
            parts = running.parts
            self.streamed.run(layers, lambda layer: layer in parts.attention or layer in parts.mlp, compute)

    def _logits_buffer(self, rows: int, logsumexp: bool, needs: HeadNeeds = EVERYTHING) -> LogitsBuffer:
        return LogitsBuffer(
            rows, self._width, self._reads, self._spare, needs, self._kept, highest=logsumexp, logsumexp=logsumexp
        )

    def _whole_passes(self, cache: KVCache) -> WholePasses | None:
        """The whole passes over this cache; None where embeddings are computed by the source."""
        if cache.of_passes is None and self.embedding is not None:
            cache.of_passes = WholePasses(self.shape, self.like, self.embedding)
        return cache.of_passes if isinstance(cache.of_passes, WholePasses) else None

    def time_phases(self, timed: bool) -> None:
        self._kernels.time_phases(self.threads, timed)

    def phases(self) -> dict[str, float]:
        return self._kernels.spent(self.threads)

    def floor(self, data: Tensor) -> tuple[float, float]:
        """Bytes of memory and operations on 8-bit numbers a second; `data` as `Kernels.floor` takes it."""
        return self._kernels.floor(self.threads, data)

    def _packed_file(
        self, packer: Packer, limit: WeightLimit, share_out: ShareOut
    ) -> tuple[LayerFile | None, tuple[Tensor, ...]]:
        """The layers in a file, and two buffers for the largest, where not all weights fit; else None and none."""
        layers = range(self.shape.layers)
        sizes = [sum(packer.size(name, layer) for name in _MATRICES) for layer in layers]
        head, left = packer.size("embed" if self.shape.tied else "head"), limit.left()
        if head + sum(sizes) + limit.besides + _least_context_bytes(self.shape) <= left:
            return None, ()
        least = head + 2 * aligned(max(sizes))
        if least > left or len(layers) < LEAST_LAYERS:
            least = min(least, head + sum(sizes))
            raise MemoryLimitTooLow(
                f"memory = {limit.stated} is too little: the output head and two layers alone take "
                f"{memory_text(least)}, and {memory_text(max(left, 1))} are left for weights"
            )
        buffers = tuple(zeroed_bytes(aligned(max(sizes))).zero_() for _ in range(2))  # written to: they count as held

        def pack(layer: int, room: Tensor) -> None:
            arena = Arena(room)
            for name in _MATRICES:
                packer.product(name, layer, share_out, arena)

        return packed_layers(limit, sizes, buffers[0], pack), buffers

    def _layer(self, packer: Packer, index: int, into: Arena | None) -> NativeLayer:
        """A layer, packed; or with its products in this arena, which something else fills."""
        source = self._source

        def norm(name: str) -> Tensor | None:
            return source.dense(name, index) if source.has(name, index) else None

        def product(name: str) -> Product:
            return packer.product(name, index) if into is None else packer.empty(name, index, into)

        return NativeLayer(tuple(map(norm, _NORMS)), self.shape.kind_of[index], tuple(map(product, _MATRICES)))


def _least_context_bytes(shape: Shape) -> int:
    """More than a short context takes: a cache that has grown once, a chunk of a prompt, some rows of logits.

    Where this is too much all the same, all layers are packed into the file and then kept in memory.
    """
    cache = 2 * 2 * shape.layers * shape.kv_heads * shape.head_dim * 3072
    return (
        cache + 8 * CHUNK_TOKENS * (shape.hidden + shape.inner + shape.heads * shape.head_dim) + 128 * shape.vocab_size
    )
