"""The interface of a decoder's layers, however they are computed: rows in, states of the rows that stay out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Protocol

import torch
from torch import Tensor

from specchat.core.device_copy import to_device
from specchat.core.reading import Counters, HeadOutput
from specchat.core.record import record
from specchat.core.request import EVERYTHING, ExtraRow, HeadNeeds, HeadOfSome
from specchat.models.base.cache_rows import Plan
from specchat.models.base.kv_cache import KVCache, RowCopies
from specchat.models.base.layer_hooks import LayerWatch
from specchat.models.base.shape import AttentionKind, Shape
from specchat.models.base.sub_layers import SubLayers
from specchat.models.base.windows import windowed


@record
class Pass:
    """One pass of some rows through the layers.

    Args:
        embed: tokens → (n, d) rows.
        tables: for each kind of attention, (positions, 1, head_dim / 2) complex64, the rotation of queries and keys
            at each position; None where nothing is rotated.
        parts: what of the layers is computed.
        watch: taps and hooks of the pass; None where there are none.
        extra_rows: the last rows, which have an embedding of their own.
    """

    plan: Plan
    embed: Callable[[Sequence[int]], Tensor]
    tables: tuple[Tensor | None, ...]
    cache: KVCache
    counters: Counters
    parts: SubLayers
    watch: LayerWatch | None = None
    extra_rows: Sequence[ExtraRow] = ()

    @cached_property
    def hidden(self) -> Tensor:
        """(rows, d) embeddings, extra rows included; may be written over."""
        hidden = self.embed(self.plan.tokens)
        if not self.extra_rows:
            return hidden
        return torch.cat([hidden, torch.stack([extra_row.embedding for extra_row in self.extra_rows]).to(hidden)])

    @cached_property
    def rotations(self) -> list[Tensor | None]:
        """For each kind of attention, (rows, 1, head_dim / 2) complex64, what rotates each row's queries and keys."""
        positions = torch.tensor(self.plan.positions)
        return [None if table is None else table[to_device(positions, table.device)] for table in self.tables]

    def masks(self, kinds: Sequence[AttentionKind]) -> list[Tensor]:
        """For each kind of attention, (rows, seen) bool, whom each row attends to; on the host."""
        return [windowed(self.plan, kind.window) for kind in kinds]

    def interrupted(self, layers: int) -> bool:
        """Whether a hook must answer before the pass is over."""
        return self.watch is not None and any(layer < layers for layer in self.watch.hooked)

    def segments(self, layers: int) -> list[range]:
        """Runs of layers without hooks between them; each ends with a layer that has one, or with the last."""
        if self.watch is None or not self.watch.hooked:
            return [range(layers)]
        cuts = sorted({0, *(layer + 1 for layer in self.watch.hooked if layer < layers), layers})
        return [range(first, last) for first, last in pairwise(cuts)]


class Network(Protocol):
    """The layers, embedding and head of a decoder. Knows nothing of texts: rows and cache are handed to it."""

    shape: Shape
    precision: str
    device: torch.device
    nbytes: int
    kernels: str
    """The name of the matrix kernels."""
    key_interleave: int
    """Keys of how many rows lie side by side in the cache it is handed."""
    row_copies: RowCopies | None
    """Copies rows of a cache where `key_interleave` says that C lays it out."""
    threads: int
    """How many threads it may use, where it has threads of its own."""
    like: Tensor
    """(kv_heads, head_dim), whose format and device the rows of the cache have."""

    def embed(self, tokens: Sequence[int]) -> Tensor:
        """(n, d) rows in the activations' format."""

    def head_rows(self, tokens: Sequence[int]) -> Tensor:
        """(n, d) float32 rows of the head for these tokens, with the final norm's factors in them."""

    def run(self, running: Pass) -> Tensor:
        """(rows, d) states after the last layer, of the rows that stayed."""

    def pass_bytes(self, rows: int, seen: int, logits: bool) -> int:
        """What a pass of so many rows over so many cache rows takes, embeddings, masks and results included."""

    def trimmed_head(self, tokens: Sequence[int]) -> HeadOfSome:
        """A head of these tokens' rows alone."""

    def chunk_scores(self, running: Pass, chunk_tokens: int) -> Tensor:
        """(layers, chunks) float32 on the host: how well chunks of the rows before a pass's one row answer its queries.

        That is the product of a query with the mean of a chunk's keys, over the root of the head size; the mean of all
        heads. Zeros for layers without attention.
        """

    def read(self, running: Pass, totals: bool = False, needs: HeadNeeds = EVERYTHING) -> HeadOutput:
        """What the head makes of the states of the rows behind the missing tokens; `totals` as `head` takes it.

        It may leave out what `needs` says is not looked at, and compute that if somebody does look at it.
        """

    def head(self, hidden: Tensor, totals: bool = False) -> HeadOutput:
        """What the final norm and the head make of (n, d) states; `totals` are computed only for draft models."""


@torch.inference_mode()
def layers_then_head(network: Network, running: Pass, totals: bool) -> HeadOutput:
    """`read` in two steps."""
    hidden, missing = network.run(running), running.plan.missing
    return network.head(hidden[missing:] if missing else hidden, totals)
