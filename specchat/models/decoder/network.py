"""A pass through a decoder's layers, and the interface of what computes it: rows in, states of rows that stay out."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Protocol

import torch
from torch import Tensor

from specchat.core.device_copy import to_device
from specchat.core.reading import Counters, HeadOutput
from specchat.core.record import record
from specchat.core.request import EVERYTHING, ExtraRow, HeadNeeds, HeadOfSome, entry_layers
from specchat.models.decoder.cache_rows import PassPlan
from specchat.models.decoder.kv_cache import KVCache
from specchat.models.decoder.layer_hooks import LayerWatch
from specchat.models.decoder.shape import AttentionKind, Shape
from specchat.models.decoder.trimmed_head import torch_trimmed_head


def windowed(plan: PassPlan, window: int | None) -> Tensor:
    """(rows, seen) bool, whom each row of a pass attends to where layers see so many tokens back; None for all.

    Rows of a text that was copied in part lie side by side though their tokens do not: there positions decide.
    """
    if window is None:
        return plan.mask
    mask = within_window(plan.mask, plan.common, window)
    if plan.copied:
        behind = torch.tensor(plan.positions)[:, None] - torch.tensor(plan.copied)
        if bool((behind >= window).any()):
            mask = mask.clone()
            mask[:, : len(plan.copied)] &= behind < window
    return mask


def within_window(mask: Tensor, common: int, window: int) -> Tensor:
    """A mask with each row's older rows left out; the mask itself where no text is longer.

    A row sees its text in order, and nothing else: the last `window` of the rows it sees are the last of its text,
    wherever in the cache they lie.

    Args:
        mask: (rows, seen) bool, whom each row attends to.
        common: the first so many rows are attended to by all.
        window: rows that one attends to, itself included.
    """
    if mask.shape[1] <= window:
        return mask
    behind = mask[:, common:]
    last = behind.flip(1).cumsum(1, dtype=torch.int32).flip(1) <= window
    first = common + behind.sum(1, dtype=torch.int32) - window
    before = torch.arange(common, device=mask.device) >= first[:, None]
    return torch.cat([before, behind & last], dim=1)


@dataclass(frozen=True)
class SubLayers:
    """The halves of layers that are computed; what is left out adds nothing to the states.

    Args:
        layers: how many the network has.
        attention, mlp: numbers of the layers whose half takes part.
    """

    layers: int
    attention: frozenset[int]
    mlp: frozenset[int]

    @classmethod
    def of_all(cls, layers: int) -> SubLayers:
        return cls(layers, frozenset(range(layers)), frozenset(range(layers)))

    def without(
        self, layers: Collection[int] | None, skip_attention: Collection[int], skip_mlp: Collection[int]
    ) -> SubLayers:
        """These less others: whole layers that are not among `layers`, and halves that are skipped."""
        kept = set(range(self.layers) if layers is None else layers)
        named = kept | {*skip_attention, *skip_mlp}
        assert named <= set(range(self.layers)), f"there is no layer {max(named)} among {self.layers}"
        attention = self.attention & (kept - set(skip_attention))
        return SubLayers(self.layers, attention, self.mlp & (kept - set(skip_mlp)))

    @cached_property
    def complete(self) -> bool:
        return len(self.attention) == len(self.mlp) == self.layers

    @cached_property
    def computed_in_all(self) -> float:
        """How many layers are computed, where a half counts half."""
        return self.computed(range(self.layers))

    def computed(self, layers: range) -> float:
        """How many of these layers are computed, where a half counts half."""
        if self.complete:
            return len(layers)
        return sum((layer in self.attention) + (layer in self.mlp) for layer in layers) / 2


@record
class Pass:
    """One pass of some rows through the layers.

    Args:
        embed: tokens → (n, d) rows.
        tables: for each kind of attention, (positions, 1, head_dim / 2) complex64, the rotation of queries and keys
            at each position; None where nothing is rotated.
        parts: what of the layers is computed.
        watch: taps and hooks of the pass; None where there are none.
        extra_rows: the last rows, which have an embedding of their own. Some may enter after the first layer.
    """

    plan: PassPlan
    embed: Callable[[Sequence[int]], Tensor]
    tables: tuple[Tensor | None, ...]
    cache: KVCache
    counters: Counters
    parts: SubLayers
    watch: LayerWatch | None = None
    extra_rows: Sequence[ExtraRow] = ()

    @cached_property
    def hidden(self) -> Tensor:
        """(rows, d) embeddings of the rows that the first layer computes; may be written over."""
        hidden = self.embed(self.plan.tokens)
        embeddings = [extra_row.embedding for extra_row in self.extra_rows if extra_row.entry is None]
        return torch.cat([hidden, torch.stack(embeddings).to(hidden)]) if embeddings else hidden

    @cached_property
    def first_rows(self) -> list[int]:
        """Those rows, among all of the pass."""
        first = self.plan.rows - len(self.extra_rows)
        return [*range(first), *(first + n for n, row in enumerate(self.extra_rows) if row.entry is None)]

    @cached_property
    def entries(self) -> frozenset[int]:
        """The layers at which extra rows enter."""
        return entry_layers(self.extra_rows)

    def saying(self, states: Tensor) -> Tensor:
        """(n, d) those of the (rows, d) states that `Network.run` returns whose logits are wanted."""
        return states[self.plan.missing :] if self.watch is None else self.watch.saying(states)

    @property
    def shows_logits(self) -> bool:
        """Whether its reading holds the logits of all rows: extra rows say some, or hooks may drop nodes."""
        return any(row.says for row in self.extra_rows) or (self.watch is not None and bool(self.watch.hooked))

    @cached_property
    def rotations(self) -> list[Tensor | None]:
        """For each kind of attention, (rows, 1, head_dim / 2) complex64, what rotates each row's queries and keys."""
        positions = torch.tensor(self.plan.positions)
        return [None if table is None else table[to_device(positions, table.device)] for table in self.tables]

    def masks(self, kinds: Sequence[AttentionKind]) -> list[Tensor]:
        """For each kind of attention, (rows, seen) bool, whom each row attends to; on the host."""
        return [windowed(self.plan, kind.window) for kind in kinds]

    def interrupted(self, layers: int) -> bool:
        """Whether a hook must answer before the pass is over, or rows enter it."""
        return bool(self.entries) or (self.watch is not None and any(layer < layers for layer in self.watch.hooked))

    def segments(self, layers: int) -> list[range]:
        """Runs of layers without hooks between them, and into which no rows enter but at their first layer."""
        if self.watch is None or not (self.watch.hooked or self.entries):
            return [range(layers)]
        cuts = sorted({0, *(layer + 1 for layer in self.watch.hooked if layer < layers), *self.entries, layers})
        return [range(first, last) for first, last in pairwise(cuts)]


class Network(Protocol):
    """The layers, embedding and head of a decoder. Knows nothing of texts: rows and cache are handed to it.

    A network extends it: what is written out here is what most do.
    """

    shape: Shape
    precision: str
    device: torch.device
    nbytes: int
    kernels: str
    """The name of the matrix kernels."""
    key_interleave: int = 1
    """Keys of how many rows lie side by side in the cache it is handed."""
    threads: int
    """How many threads it may use, where it has threads of its own."""

    @property
    def unrecorded(self) -> Network:
        """The network whose passes may read several texts: itself, unless its own were recorded."""
        return self

    like: Tensor
    """(kv_heads, head_dim), whose format and device the rows of the cache have."""

    def new_cache(self, layers: Collection[int], max_rows: int, beside: KVCache | None = None) -> KVCache:
        """A cache for keys and values of these layers, empty; `beside` is another one of this network."""
        return KVCache(layers, max_rows, beside=beside)

    def embed(self, tokens: Sequence[int]) -> Tensor:
        """(n, d) rows in the activations' format."""

    def head_rows(self, tokens: Sequence[int]) -> Tensor:
        """(n, d) float32 rows of the head for these tokens, with the final norm's factors in them."""

    def run(self, running: Pass) -> Tensor:
        """(rows, d) states after the last layer, of the rows that stayed."""

    def pass_bytes(self, rows: int, seen: int, logits: bool) -> int:
        """Memory of a pass of so many rows over so many cache rows, embeddings, masks and results included."""

    def trimmed_head(self, tokens: Sequence[int]) -> HeadOfSome:
        """A head of these tokens' rows alone."""
        return torch_trimmed_head(tokens, self.head_rows, self.like, self.shape.epsilon)

    def chunk_scores(self, running: Pass, chunk_tokens: int) -> Tensor:
        """(layers, key heads, chunks) float32 on the host: how well chunks of the rows before a pass's one row answer
        its queries.

        That is the product of a query with the mean of a chunk's keys, over the root of the head size; the mean of the
        heads that share the keys, or of all where there is one for all key heads. Zeros for layers without attention.
        """

    @torch.inference_mode()
    def read(self, running: Pass, logsumexp: bool = False, needs: HeadNeeds = EVERYTHING) -> HeadOutput:
        """The head's output for the rows behind the missing tokens; `logsumexp` as `head` takes it.

        It may leave out what `needs` says is not looked at, and compute that if somebody does look at it.
        """
        return self.head(running.saying(self.run(running)), logsumexp)

    def joint_groups(self, passes: Sequence[Pass]) -> list[list[int]]:
        """The places of those that `read_together` computes in one pass, for each such pass.

        Args:
            passes: without hooks and extra rows, each over a cache of its own.
        """

    def read_together(self, passes: Sequence[Pass], needs: Sequence[HeadNeeds]) -> list[HeadOutput]:
        """`read` of the texts of a group, with the weights read once.

        What is said of a text is what `read` would say of it alone.
        """

    def head(self, hidden: Tensor, logsumexp: bool = False) -> HeadOutput:
        """Output of final norm and head for (n, d) states; `logsumexp` is computed only for draft models."""


@dataclass(frozen=True)
class PassSizes:
    """Sizes of a decoder, as far as the memory of its passes depends on them.

    Args:
        element: bytes of a number.
        masks: how many kinds of attention there are, each with a mask of its own.
    """

    hidden: int
    inner: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab_size: int
    element: int
    masks: int = 1

    def bytes(self, rows: int, seen: int, logits: bool) -> int:
        """The most at once: in the layers, with the masks they add to scores, or in the head.

        Args:
            rows: of the pass.
            seen: cache rows that they attend to, themselves included.
            logits: whether the head is computed.
        """
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        attention = 3 * queries + 2 * keys + self.heads * seen  # with the scores, where they are kept
        added = self.masks * seen * self.heads // self.kv_heads
        layers = 3 * self.hidden + max(attention, 3 * self.inner) + added
        head = 2 * self.hidden + self.vocab_size if logits else 0
        return rows * (max(layers, head) * self.element + self.masks * seen)
