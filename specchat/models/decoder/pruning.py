"""Narrower networks made of a target's file: ranking its heads and channels, keeping the best, and what that takes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import torch
import torch.nn.functional as F
from torch import Tensor

from specchat.core.drafting_networks import Ranking
from specchat.core.memory import NetworkMemory
from specchat.core.request import Adapter
from specchat.core.seams import Model
from specchat.errors import ModelError
from specchat.models.decoder.adapters import Factors, checked, sizes_of
from specchat.models.decoder.decoder import Decoder
from specchat.models.decoder.differentiable_layer import NO_FACTORS, Gates, layer_output
from specchat.models.decoder.network import Network
from specchat.models.decoder.pruned_recovery import recovery, recovery_bytes
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

_CHANNELS_TOGETHER = 32
"""The number of channels that is kept is a multiple of this: kernels take so many together."""

_ROWS, _COLUMNS = {"q", "k", "v", "gate", "up"}, {"o", "down"}

HEAD_ROWS = 4096
"""Rows of the head whose logits are computed at once."""

_FLOAT = 4
"""Bytes of a number while weights are ranked and packed: all of that is done in float32."""


@dataclass(frozen=True)
class PrunableFile:
    """A `Prunable` of our own decoder.

    Args:
        target: the decoder that runs the file's weights.
        opened: opens the file's weights, and says their shape. None of them stay in memory after they were asked for.
        network: makes a network of a shape and its weights, as the target's was made.
    """

    target: Decoder
    opened: Callable[[], tuple[WeightSource, Shape]]
    network: Callable[[Shape, WeightSource], Network]

    @property
    def whole(self) -> Shape:
        return self.target.network.shape

    @property
    def sizes(self) -> tuple[int, int, int]:
        return self.whole.layers, self.whole.heads, self.whole.inner

    def by_magnitude(self) -> Ranking:
        return magnitude_ranking(self.whole, self.prepared())

    def by_taylor(self, texts: Sequence[Sequence[int]]) -> Iterator[Ranking | None]:
        return taylor_ranking(self.whole, self.prepared(), torch.tensor([list(text) for text in texts]))

    def recover(
        self, ranking: Ranking, ratio: float, texts: Sequence[Sequence[int]], steps: int
    ) -> Iterator[Factors | None]:
        kept = KeptUnits.of(ranking, self.whole, ratio)
        shape = kept.shape(self.whole)
        source = prepared(PrunedSource(self.opened()[0], kept, self.whole.head_dim), shape)
        tokens = torch.tensor([list(text) for text in texts])
        return recovery(shape, source, tokens, steps, partial(loss_and_gradient, shape, source))

    def pruned(self, ranking: Ranking, ratio: float, recovered: Factors = NO_FACTORS) -> Model:
        kept = KeptUnits.of(ranking, self.whole, ratio)
        try:
            checked(Adapter(recovered), self.whole.layers, sizes_of(kept.shape(self.whole)))
        except ModelError:
            recovered = NO_FACTORS  # learnt for another ratio
        source = PrunedSource(self.opened()[0], kept, self.whole.head_dim, recovered)
        return Decoder(self.network(kept.shape(self.whole), source), self.target.context_tokens, drafts=True)

    def memory(self, ratio: float, texts: int, tokens: int, recovers: bool = False) -> NetworkMemory:
        """Memory of such a model: as many bytes for each weight as the target, which may have some in more bits."""
        whole, network = self.whole, self.target.network
        kept = KeptUnits.of(first_units(whole), whole, ratio).shape(whole)
        keeps_table = network.kernels != "native"  # which reads embeddings from the file
        weights_bytes = round(network.nbytes * weights_of(kept, keeps_table) / weights_of(whole, keeps_table))
        learning = recovery_bytes(kept) if recovers else 0
        working = max(making_bytes(whole, network.threads), ranking_bytes(whole, texts, tokens) + learning)
        return NetworkMemory(self._stand_in, weights_bytes, working)

    @cached_property
    def _stand_in(self) -> Decoder:
        return self.target.with_new_cache()

    def prepared(self) -> WeightSource:
        """The file's weights as a decoder's layers take them."""
        return prepared(self.opened()[0], self.whole)


@dataclass(frozen=True)
class KeptUnits:
    """Heads and channels that are left of every layer, the same number in each.

    Args:
        heads: (layers, h) int64, heads of queries, ascending.
        kv_heads: (layers, k) int64, heads of keys and values, ascending.
        channels: (layers, c) int64, channels of the MLP, ascending.
    """

    heads: Tensor
    kv_heads: Tensor
    channels: Tensor

    @classmethod
    def of(cls, ranking: Ranking, shape: Shape, ratio: float) -> KeptUnits:
        """All but this share of the heads and channels, those that matter most.

        Where several heads share keys and values, each such group loses as many heads and keeps its keys and values.
        """
        group = shape.heads // shape.kv_heads
        groups = shape.kv_heads if group > 1 else 1
        size = shape.heads // groups
        places = ranking.heads.long()
        order = places.argsort(dim=-1).view(shape.layers, groups, size).argsort(dim=-1)  # best first, in each group
        kept = order[:, :, : max(1, round((1.0 - ratio) * size))].sort(dim=-1).values
        heads = (kept + size * torch.arange(groups)[:, None]).flatten(1)
        kv_heads = torch.arange(shape.kv_heads).expand(shape.layers, -1) if group > 1 else heads
        wanted = _CHANNELS_TOGETHER * round((1.0 - ratio) * shape.inner / _CHANNELS_TOGETHER)
        count = min(shape.inner, max(_CHANNELS_TOGETHER, wanted))
        return cls(heads, kv_heads, ranking.channels[:, :count].long().sort(dim=-1).values)

    def shape(self, whole: Shape) -> Shape:
        return dataclasses.replace(
            whole, heads=self.heads.shape[1], kv_heads=self.kv_heads.shape[1], inner=self.channels.shape[1]
        )


class PrunedSource(AdjustedSource):
    """The rows and columns of the heads and channels that are kept, and what is added to them; all else as it is."""

    def __init__(self, source: WeightSource, kept: KeptUnits, head_dim: int, recovered: Factors = NO_FACTORS) -> None:
        """`recovered` is added to what is kept: see `recovery`."""
        super().__init__(source)
        self._recovered = recovered
        self._kept = kept
        self._kept_head_dim = head_dim

    def stored(self, name: str, layer: int | None = None) -> StoredRows | None:
        return super().stored(name, layer) if layer is None or self._places(name, layer) is None else None

    def four_bit(self, name: str, layer: int | None = None) -> FourBit | None:
        return super().four_bit(name, layer) if layer is None or self._places(name, layer) is None else None

    def dense(self, name: str, layer: int | None = None, part: str = "weight", rows: RowChoice = ALL_ROWS) -> Tensor:
        places = None if layer is None else self._places(name, layer)
        if places is None:
            return super().dense(name, layer, part, rows)
        if name in _ROWS:
            values = super().dense(name, layer, part)[places[rows]]
        else:
            values = super().dense(name, layer, part, rows)
            values = values[:, places] if part == "weight" else values
        if part != "weight" or layer is None or (layer, name) not in self._recovered:
            return values
        down, up = self._recovered[layer, name]
        return values + (up[rows] @ down).to(values)

    def about(self, name: str, layer: int | None = None, part: str = "weight") -> TensorFacts:
        facts = super().about(name, layer, part)
        places = None if layer is None else self._places(name, layer)
        if places is None or facts.sizes is None or (name in _COLUMNS and part != "weight"):
            return facts
        rest, last = (facts.sizes[1:], facts.sizes[:-1])
        return dataclasses.replace(facts, sizes=(len(places), *rest) if name in _ROWS else (*last, len(places)))

    def _places(self, name: str, layer: int) -> Tensor | None:
        """Which rows or columns of a layer's weight are kept; None where all are."""
        match name:
            case "q" | "o":
                return self._of_heads(self._kept.heads[layer])
            case "k" | "v":
                return self._of_heads(self._kept.kv_heads[layer])
            case "gate" | "up" | "down":
                return self._kept.channels[layer]
        return None

    def _of_heads(self, heads: Tensor) -> Tensor:
        return (heads[:, None] * self._kept_head_dim + torch.arange(self._kept_head_dim)).flatten()


def taylor_ranking(shape: Shape, source: WeightSource, texts: Tensor) -> Iterator[Ranking | None]:
    """Rank heads and channels by first-order Taylor importance; None after every piece of work, then the ranking.

    The importance of a group of weights is |Σ w · dL/dw| over the group, summed over the texts. For the weights that a
    head or a channel is read out by, that sum is the derivative of the loss by a factor on what the head or channel
    passes on. So one such factor each, and no gradient of any weight, is all that is computed; and since a layer's
    input is kept, one layer's weights at a time.

    Args:
        source: prepared for a decoder of this shape.
        texts: (B, S) int64 tokens.

    Reference: Ma et al., LLM-Pruner, arXiv:2305.11627 (vector-wise importance, of the last product of a group).
    """
    heads, channels = torch.zeros(shape.layers, shape.heads), torch.zeros(shape.layers, shape.inner)
    inputs = [source.embed(texts.flatten().tolist()).view(*texts.shape, -1).float()]
    for index in range(shape.layers):
        with torch.no_grad():
            inputs.append(layer_output(shape, source, index, inputs[-1], Gates.open(shape, len(texts))))
        source.let_go()
        yield None
    gradient = loss_gradient(shape, source, inputs.pop(), texts)
    yield None
    for index in reversed(range(shape.layers)):
        hidden, gates = inputs.pop().requires_grad_(), Gates.open(shape, len(texts))
        factors = (gates.heads.requires_grad_(), gates.channels.requires_grad_())
        with torch.enable_grad():
            out = layer_output(shape, source, index, hidden, gates)
        gradient, of_heads, of_channels = torch.autograd.grad(out, (hidden, *factors), gradient)
        heads[index], channels[index] = of_heads.abs().sum(dim=0), of_channels.abs().sum(dim=0)
        source.let_go()
        yield None
    yield Ranking.of(heads, channels)


@torch.no_grad()
def loss_gradient(shape: Shape, source: WeightSource, hidden: Tensor, texts: Tensor) -> Tensor:
    """(B, S, d) derivative of the summed next-token loss by the states after the last layer."""
    return loss_and_gradient(shape, source, hidden, texts)[1]


@torch.no_grad()
def loss_and_gradient(shape: Shape, source: WeightSource, hidden: Tensor, texts: Tensor) -> tuple[float, Tensor]:
    """The summed next-token loss, and its derivative by (B, S, d) states after the last layer."""
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
        normed = F.rms_norm(leaf, (shape.hidden,), norm, shape.epsilon)
    (of_states,) = torch.autograd.grad(normed, leaf, gradient)
    return loss, F.pad(of_states, (0, 0, 0, 1))


def magnitude_ranking(shape: Shape, source: WeightSource) -> Ranking:
    """Heads and channels by the mean square of their weights: what is taken until texts tell more."""
    heads, channels = torch.zeros(shape.layers, shape.heads), torch.zeros(shape.layers, shape.inner)
    for index in range(shape.layers):
        rows = source.dense("q", index).view(shape.heads, -1)
        columns = source.dense("o", index).t().reshape(shape.heads, -1)
        heads[index] = rows.square().sum(dim=1) + columns.square().sum(dim=1)
        channels[index] = source.dense("down", index).square().sum(dim=0)
        for name in ("gate", "up"):
            channels[index] += source.dense(name, index).square().sum(dim=1)
        source.let_go()
    return Ranking.of(heads, channels)


def first_units(shape: Shape) -> Ranking:
    """A ranking that only counts: the first heads and channels come first."""
    return Ranking.of(
        -torch.arange(shape.heads).expand(shape.layers, -1), -torch.arange(shape.inner).expand(shape.layers, -1)
    )


def weights_of(shape: Shape, keeps_table: bool) -> int:
    """How many weights the layers and the head have, and the table of embeddings where it is another and kept."""
    tables = 2 if keeps_table and not shape.tied else 1
    return shape.layers * _layer_weights(shape) + tables * shape.hidden * shape.vocab_size


def making_bytes(shape: Shape, threads: int) -> int:
    """The most while the narrower weights are packed: threads pack a layer each, and pages of the file are read."""
    return threads * _FLOAT * (3 * _largest(shape) + _layer_weights(shape)) + _head_rows_bytes(shape)


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


def _largest(shape: Shape) -> int:
    """Weights of the largest matrix of a layer."""
    return shape.hidden * max(shape.inner, shape.heads * shape.head_dim)


def _head_rows_bytes(shape: Shape) -> int:
    """Rows of the head that are read at once, as they lie and as numbers."""
    return 2 * _FLOAT * HEAD_ROWS * shape.hidden
