"""Narrower networks made of a target's file: ranking its units, keeping the best of them, and what that takes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from specchat.core.drafting_networks import LeftOut, Ranking
from specchat.core.memory import NetworkMemory
from specchat.core.request import Adapter
from specchat.core.seams import Model
from specchat.errors import ModelError
from specchat.models.decoder.adapters import Factors, checked, sizes_of
from specchat.models.decoder.decoder import Decoder
from specchat.models.decoder.differentiable_layer import NO_FACTORS, NORMS, READERS, WRITERS, DifferentiableLayer, Gates
from specchat.models.decoder.network import Network
from specchat.models.decoder.pruned_recovery import recovery, recovery_bytes, states_of
from specchat.models.decoder.shape import Shape
from specchat.models.decoder.weight_check import prepared
from specchat.models.weights.weight_source import (
    ALL_ROWS,
    AdjustedSource,
    FourBit,
    RowChoice,
    StoredRows,
    TensorFacts,
    WeightSource,
)

_TOGETHER = 32
"""The number of channels and of dimensions that is kept is a multiple of this: kernels take so many together."""

_TABLES, _HEAD_NORMS = ("embed", "head"), ("q_norm", "k_norm")

HEAD_ROWS = 4096
"""Rows of the head whose logits are computed at once."""

_FLOAT = 4
"""Bytes of a number while weights are ranked and packed: all of that is done in float32."""


@dataclass(frozen=True)
class PrunableFile:
    """A `Prunable` of our own decoder. `target` runs the file's weights, `opened` opens them and says their shape, with
    none of them in memory after they were asked for, and `network` makes networks as the target's was made."""

    target: Decoder
    opened: Callable[[], tuple[WeightSource, Shape]]
    network: Callable[[Shape, WeightSource], Network]

    @property
    def whole(self) -> Shape:
        return self.target.network.shape

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        return _sizes(self.whole)

    def sizes_without(self, left_out: LeftOut) -> tuple[int, int, int, int]:
        return _sizes(self._shape_without(left_out))

    def by_magnitude(self) -> Ranking:
        return magnitude_ranking(self.whole, self.prepared())

    def by_taylor(self, texts: Sequence[Sequence[int]]) -> Iterator[Ranking | None]:
        return taylor_ranking(self.whole, self.prepared(), torch.tensor([list(text) for text in texts]))

    def recover(
        self, ranking: Ranking, left_out: LeftOut, texts: Sequence[Sequence[int]], steps: int
    ) -> Iterator[Factors | None]:
        kept = KeptUnits.of(ranking, self.whole, left_out)
        shape = kept.shape(self.whole)
        source = prepared(PrunedSource(self.opened()[0], kept, self.whole), shape)
        tokens = torch.tensor([list(text) for text in texts])
        return recovery(shape, source, tokens, steps, partial(head_loss, shape, source))

    def pruned(self, ranking: Ranking, left_out: LeftOut, recovered: Factors = NO_FACTORS) -> Model:
        kept = KeptUnits.of(ranking, self.whole, left_out)
        shape = kept.shape(self.whole)
        try:
            checked(Adapter(recovered), self.whole.layers, sizes_of(shape))
        except ModelError:
            recovered = NO_FACTORS
        source = PrunedSource(self.opened()[0], kept, self.whole, recovered)
        return Decoder(self.network(shape, source), self.target.context_tokens, drafts=True)

    def memory(self, left_out: LeftOut, texts: int, tokens: int, recovers: bool = False) -> NetworkMemory:
        """Memory of such a model: as many bytes for each weight as the target, which may have some in more bits."""
        whole, network = self.whole, self.target.network
        kept = self._shape_without(left_out)
        keeps_table = network.kernels != "native"  # which reads embeddings from the file
        weights_bytes = round(network.nbytes * weights_of(kept, keeps_table) / weights_of(whole, keeps_table))
        learning = recovery_bytes(kept) if recovers else 0
        working = max(making_bytes(whole, network.threads), ranking_bytes(whole, texts, tokens) + learning)
        return NetworkMemory(self._stand_in, weights_bytes, working)

    def _shape_without(self, left_out: LeftOut) -> Shape:
        return KeptUnits.of(first_units(self.whole), self.whole, left_out).shape(self.whole)

    @cached_property
    def _stand_in(self) -> Decoder:
        return self.target.with_new_cache()

    def prepared(self) -> WeightSource:
        """The file's weights as a decoder's layers take them."""
        return prepared(self.opened()[0], self.whole)


@dataclass(frozen=True)
class KeptUnits:
    """Heads and channels that are left of every layer, the same number in each, and dimensions of the hidden state.

    Args:
        heads: (layers, h) int64, heads of queries, ascending.
        kv_heads: (layers, k) int64, heads of keys and values, ascending.
        channels: (layers, c) int64, channels of the MLP, ascending.
        dimensions: (d′,) int64, ascending; None where all are kept.
    """

    heads: Tensor
    kv_heads: Tensor
    channels: Tensor
    dimensions: Tensor | None = None

    @classmethod
    def of(cls, ranking: Ranking, shape: Shape, left_out: LeftOut) -> KeptUnits:
        """All but these shares, those that matter most.

        Where several heads share keys and values, each such group loses as many heads and keeps its keys and values.
        """
        group = shape.heads // shape.kv_heads
        groups = shape.kv_heads if group > 1 else 1
        size = shape.heads // groups
        places = ranking.heads.long()
        order = places.argsort(dim=-1).view(shape.layers, groups, size).argsort(dim=-1)  # best first, in each group
        kept = order[:, :, : max(1, round((1.0 - left_out.heads) * size))].sort(dim=-1).values
        heads = (kept + size * torch.arange(groups)[:, None]).flatten(1)
        kv_heads = torch.arange(shape.kv_heads).expand(shape.layers, -1) if group > 1 else heads
        channels, dimensions = (
            ranked[..., : _kept_of(ranked.shape[-1], share)].long().sort(dim=-1).values
            for ranked, share in ((ranking.channels, left_out.channels), (ranking.dimensions, left_out.dimensions))
        )
        return cls(heads, kv_heads, channels, dimensions if len(dimensions) < shape.hidden else None)

    def shape(self, whole: Shape) -> Shape:
        hidden = whole.hidden if self.dimensions is None else len(self.dimensions)
        return dataclasses.replace(
            whole, heads=self.heads.shape[1], kv_heads=self.kv_heads.shape[1], inner=self.channels.shape[1],
            hidden=hidden, epsilon=whole.epsilon * whole.hidden / hidden,
        )  # fmt: skip


def _kept_of(count: int, share: float) -> int:
    """How many of so many channels or dimensions stay without this share."""
    if share == 0.0:
        return count
    return min(count, max(_TOGETHER, _TOGETHER * round((1.0 - share) * count / _TOGETHER)))


def _sizes(shape: Shape) -> tuple[int, int, int, int]:
    return shape.layers, shape.heads, shape.inner, shape.hidden


class PrunedSource(AdjustedSource):
    """The rows and columns of the units that are kept, and what is added to them; all else as it is.

    What is cut is read in floating point, and packed like weights of a file in that format: in 4 bits, whatever columns
    are left of a row are rounded anew in groups of 32.

    Without some of d dimensions a norm still has to divide by the root of a mean over d, to which those that are gone
    add zeros. A mean over the d′ that are left is d / d′ times as large. So epsilon is that many times as large too
    (`KeptUnits.shape`), and the norm's weights by its root. Norms of queries and keys have the same epsilon and means
    over a head: there what goes in is made larger by that root.
    """

    def __init__(self, source: WeightSource, kept: KeptUnits, whole: Shape, recovered: Factors = NO_FACTORS) -> None:
        """`recovered` is added to what is kept: see `recovery`."""
        super().__init__(source)
        self._recovered = recovered
        self._kept = kept
        self._kept_head_dim = whole.head_dim
        self._scale = 1.0 if kept.dimensions is None else (whole.hidden / len(kept.dimensions)) ** 0.5

    def stored(self, name: str, layer: int | None = None) -> StoredRows | None:
        return None if self._is_cut(name, layer) else super().stored(name, layer)

    def four_bit(self, name: str, layer: int | None = None) -> FourBit | None:
        return None if self._is_cut(name, layer) else super().four_bit(name, layer)

    def dense(self, name: str, layer: int | None = None, part: str = "weight", rows: RowChoice = ALL_ROWS) -> Tensor:
        kept_rows, columns = self._places(name, layer)
        if kept_rows is None:
            values = super().dense(name, layer, part, rows)
        else:
            values = super().dense(name, layer, part)[kept_rows[rows]]
        if columns is not None and part == "weight":
            values = values[:, columns]
        if self._scale != 1.0 and self._is_scaled(name, layer):
            values = values * self._scale
        if part != "weight" or layer is None or (layer, name) not in self._recovered:
            return values
        down, up = self._recovered[layer, name]
        return values + (up[rows] @ down).to(values)

    def about(self, name: str, layer: int | None = None, part: str = "weight") -> TensorFacts:
        facts = super().about(name, layer, part)
        kept = self._places(name, layer)
        if facts.sizes is None:
            return facts
        sizes = [size if some is None else len(some) for size, some in zip(facts.sizes, kept, strict=False)]
        return dataclasses.replace(facts, sizes=tuple(sizes))

    def embed(self, ids: list[int]) -> Tensor:
        rows, dimensions = super().embed(ids), self._kept.dimensions
        return rows if dimensions is None else rows[:, dimensions]

    def _places(self, name: str, layer: int | None) -> tuple[Tensor | None, Tensor | None]:
        """Which rows and which columns of a weight are kept, None where all are; of a norm or a bias, rows alone."""
        dimensions = self._kept.dimensions
        if layer is None or name not in (*READERS, *WRITERS):
            return (None, dimensions) if name in _TABLES else (None if name in _HEAD_NORMS else dimensions, None)
        match name:
            case "q" | "o":
                own = self._of_heads(self._kept.heads[layer])
            case "k" | "v":
                own = self._of_heads(self._kept.kv_heads[layer])
            case _:
                own = self._kept.channels[layer]
        return (own, dimensions) if name in READERS else (dimensions, own)

    def _is_cut(self, name: str, layer: int | None) -> bool:
        return any(kept is not None for kept in self._places(name, layer))

    def _is_scaled(self, name: str, layer: int | None) -> bool:
        return name == "norm" or name in NORMS or (name in ("q", "k") and self.has("q_norm", layer))

    def _of_heads(self, heads: Tensor) -> Tensor:
        return (heads[:, None] * self._kept_head_dim + torch.arange(self._kept_head_dim)).flatten()


def taylor_ranking(shape: Shape, source: WeightSource, texts: Tensor) -> Iterator[Ranking | None]:
    """Rank units by first-order Taylor importance; None after every piece of work, then the ranking.

    The importance of some weights is |Σ w · dL/dw|, summed over the texts. That sum is the derivative of the loss by a
    factor on what they pass on. So factors, and no gradient of any weight, are all that is computed; and since the
    input of every layer is kept, one layer's weights at a time.

    Of a head or a channel, the weights that it is read out by count. The group of a dimension has its column of the
    embedding, its weight of every norm, its row of every o and down, its column of every q, k, v, gate and up and of
    the head. The importance of a group is the sum over its members.

    Args:
        source: prepared for a decoder of this shape.
        texts: (B, S) int64 tokens.

    Reference: Ma et al., LLM-Pruner, arXiv:2305.11627 (vector-wise importance; of the last product of a head's or
    channel's group, summed over that of a dimension).
    """
    heads, channels = torch.zeros(shape.layers, shape.heads), torch.zeros(shape.layers, shape.inner)
    inputs = yield from states_of(shape, source, texts)
    _, gradient, of_head = head_loss(shape, source, inputs.pop(), texts)
    dimensions = of_head.abs().sum(dim=0)  # of the last norm; what it writes the head alone reads
    yield None
    for index in reversed(range(shape.layers)):
        hidden, gates = inputs.pop().requires_grad_(), Gates.open(shape, len(texts))
        factors = (gates.heads, gates.channels, *gates.dimensions.values())
        with torch.enable_grad():
            out = DifferentiableLayer(shape, source, index, gates)(hidden)
        gradient, of_heads, of_channels, *others = torch.autograd.grad(
            out, (hidden, *factors), gradient, allow_unused=True
        )
        heads[index], channels[index] = of_heads.abs().sum(dim=0), of_channels.abs().sum(dim=0)
        for of_weight in others:  # None of a norm that the layer does not have
            dimensions += 0.0 if of_weight is None else of_weight.abs().sum(dim=0)
        source.let_go()
        yield None
    of_embedding = (hidden.detach() * gradient).sum(dim=1)
    for of_table in (of_embedding + of_head,) if shape.tied else (of_embedding, of_head):
        dimensions += of_table.abs().sum(dim=0)
    yield Ranking.of(heads, channels, dimensions)


class HeadLoss(NamedTuple):
    """The summed next-token loss of texts.

    Args:
        gradient: (B, S, d) its derivative by the states after the last layer.
        by_column: (B, d) Σ w · dL/dw of every column of the head.
    """

    loss: float
    gradient: Tensor
    by_column: Tensor


@torch.no_grad()
def head_loss(shape: Shape, source: WeightSource, hidden: Tensor, texts: Tensor) -> HeadLoss:
    """The loss of (B, S, d) states after the last layer."""
    states, following = hidden[:, :-1], texts[:, 1:]
    norm, name = source.dense("norm"), "embed" if shape.tied else "head"
    normed = F.rms_norm(states, (shape.hidden,), norm, shape.epsilon)
    total = torch.full(following.shape, -torch.inf)
    for first in range(0, shape.vocab_size, HEAD_ROWS):
        logits = normed @ source.dense(name, rows=slice(first, first + HEAD_ROWS)).t()
        total = torch.logaddexp(total, torch.logsumexp(logits, dim=-1))
    gradient = -source.dense(name, rows=following.flatten().tolist()).view_as(normed)
    loss = float((total + (normed * gradient).sum(dim=-1)).sum())
    for first in range(0, shape.vocab_size, HEAD_ROWS):
        rows = source.dense(name, rows=slice(first, first + HEAD_ROWS))
        gradient += (normed @ rows.t() - total[..., None]).exp() @ rows
    with torch.enable_grad():
        leaf = states.detach().requires_grad_()
        (of_states,) = torch.autograd.grad(F.rms_norm(leaf, (shape.hidden,), norm, shape.epsilon), leaf, gradient)
    return HeadLoss(loss, F.pad(of_states, (0, 0, 0, 1)), (normed * gradient).sum(dim=1))


def magnitude_ranking(shape: Shape, source: WeightSource) -> Ranking:
    """Units by the mean square of their weights: what is taken until texts tell more."""
    heads, channels = torch.zeros(shape.layers, shape.heads), torch.zeros(shape.layers, shape.inner)
    dimensions = source.dense("norm").square()
    for name in ("embed",) if shape.tied else ("embed", "head"):
        for first in range(0, shape.vocab_size, HEAD_ROWS):
            dimensions += source.dense(name, rows=slice(first, first + HEAD_ROWS)).square().sum(dim=0)
        source.let_go()
    for index in range(shape.layers):
        squares = {name: source.dense(name, index).square() for name in (*READERS, *WRITERS)}
        for name, square in squares.items():
            dimensions += square.sum(dim=0 if name in READERS else 1)
        for name in NORMS:
            dimensions += source.dense(name, index).square() if source.has(name, index) else 0.0
        heads[index] = (squares["q"].sum(dim=1) + squares["o"].sum(dim=0)).view(shape.heads, -1).sum(dim=1)
        channels[index] = squares["gate"].sum(dim=1) + squares["up"].sum(dim=1) + squares["down"].sum(dim=0)
        source.let_go()
    return Ranking.of(heads, channels, dimensions)


def first_units(shape: Shape) -> Ranking:
    """A ranking that only counts: the first units come first."""
    heads, channels = (-torch.arange(count).expand(shape.layers, -1) for count in (shape.heads, shape.inner))
    return Ranking.of(heads, channels, -torch.arange(shape.hidden))


def weights_of(shape: Shape, keeps_table: bool) -> int:
    """How many weights the layers and the head have, and the table of embeddings where it is another and kept."""
    tables = 2 if keeps_table and not shape.tied else 1
    return shape.layers * _layer_weights(shape) + tables * shape.hidden * shape.vocab_size


def making_bytes(shape: Shape, threads: int) -> int:
    """The most while the narrower weights are packed: threads pack a layer each, and pages of the file are read."""
    largest_matrix = shape.hidden * max(shape.inner, shape.heads * shape.head_dim)
    return threads * _FLOAT * (3 * largest_matrix + _layer_weights(shape)) + _head_rows_bytes(shape)


def ranking_bytes(shape: Shape, texts: int, tokens: int) -> int:
    """The most while units are ranked by texts of so many tokens: each layer's input is kept, and one is computed."""
    rows = texts * tokens
    inputs = (shape.layers + 2) * rows * shape.hidden
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    attention = 4 * texts * shape.heads * tokens * tokens
    layer = rows * (8 * shape.hidden + 6 * shape.inner + 6 * queries + 6 * keys) + attention + 2 * _layer_weights(shape)
    head = _FLOAT * 3 * rows * HEAD_ROWS + _head_rows_bytes(shape)
    return _FLOAT * inputs + max(_FLOAT * layer, head)


def _layer_weights(shape: Shape) -> int:
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    return shape.hidden * (2 * queries + 2 * keys + 3 * shape.inner)


def _head_rows_bytes(shape: Shape) -> int:
    """Rows of the head that are read at once, as they lie and as numbers."""
    return 2 * _FLOAT * HEAD_ROWS * shape.hidden
