"""Masks: trained embeddings behind the nodes of a tree, in rows of the target's own pass.

`prompt_tokens` has embeddings alone, `mtp` also a low-rank adapter of the target's attention that acts on these rows,
and a sampler, which lets a guess know the one before it. The rows of `speculative_streaming` are streams, which enter
the pass at one of its last layers.

Reference: Chen et al., Parallel Prompt Decoding, arXiv:2405.18628 (`prompt_tokens`); Samragh et al., Your LLM Knows the
Future: Uncovering Its Multi-Token Prediction Potential, arXiv:2507.11851 (`mtp`); Bhendawade et al., Speculative
Streaming, arXiv:2402.11131 (`speculative_streaming`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specchat.config.trained_drafters import TrainedDrafter
from specchat.core.drafting_networks import MaskRows
from specchat.core.request import Adapter, Entry
from specchat.core.seams import Weights
from specchat.errors import ConfigError, ModelError
from specchat.models.decoder.shape import Shape
from specchat.models.draft_heads.head import DraftNetwork, Recipe, SharedWeights
from specchat.models.draft_heads.layers import rms_normalize
from specchat.models.draft_heads.loading import load_network
from specchat.models.draft_heads.sizes import (
    MOST_DEPTH,
    MOST_ENSEMBLE,
    MOST_LAYER,
    MOST_RANK,
    MOST_WIDTH,
    NetworkSizes,
    multiple_of_32,
    size,
)

ADAPTED = ("q", "k", "v", "o")
"""The products that an adapter adds to."""

_STREAMED = 0.25
"""The share of a target's layers that compute streams."""

_COMMON, _NOISE, _LEAST = 256, 0.1, 1e-6
"""Masks begin as the mean of so many frequent tokens, with noise of so much of their spread."""


@dataclass(frozen=True)
class PromptTokenSizes(NetworkSizes):
    """Sizes of `prompt_tokens`.

    Args:
        masks: so many tokens ahead are guessed, behind the next one.
        ensemble: so many embeddings stand for each of them, in rows of their own; their logits are averaged.
    """

    masks: int = size(MOST_DEPTH, default=3)
    ensemble: int = size(MOST_ENSEMBLE, default=1)


@dataclass(frozen=True)
class MtpSizes(PromptTokenSizes):
    """Sizes of `mtp`.

    Args:
        layers: of the target.
        queries, keys: rows of the target's products for queries, and for keys or values.
        rank: of the additions to the target's products.
        sampler: width of the MLP on a mask's state and the token before; 0: none, as in drafters of earlier versions.
    """

    layers: int = size(MOST_LAYER, default=1)
    queries: int = size(MOST_WIDTH, default=1)
    keys: int = size(MOST_WIDTH, default=1)
    rank: int = size(MOST_RANK, default=16)
    sampler: int = size(MOST_WIDTH, least=0, default=0)

    @property
    def adapted(self) -> range:
        """The layers whose attention is adapted."""
        return range(self.layers)


@dataclass(frozen=True)
class StreamSizes(MtpSizes):
    """Sizes of `speculative_streaming`, whose masks are streams.

    Args:
        first: the first layer that computes streams.
    """

    first: int = size(MOST_LAYER, least=0, default=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.first >= self.layers:
            raise ConfigError(f"first = {self.first} is not one of layers = {self.layers}, which count from 0")

    @property
    def adapted(self) -> range:
        return range(self.first, self.layers)


class PromptTokens(DraftNetwork[PromptTokenSizes]):
    """Embeddings of masks. They run through the target itself: `FrozenTarget` in training, afterwards its pass."""

    recipe = Recipe(reads_back=True, through_target=True, measurements=6, measured_texts=32)
    sizes_type = PromptTokenSizes

    def __init__(self, sizes: PromptTokenSizes, shared: SharedWeights) -> None:
        super().__init__(sizes, shared)
        self.embeddings = nn.ParameterList(torch.empty(sizes.hidden) for _ in range(sizes.masks * sizes.ensemble))

    @classmethod
    def sizes_for(cls, shape: Shape, taps: tuple[int, ...]) -> PromptTokenSizes:
        return PromptTokenSizes(shape.hidden, epsilon=shape.epsilon)

    @torch.no_grad()
    def begin_(self, generator: torch.Generator) -> None:
        """Begin as a token that says nothing: the mean of frequent ones, as long as they are."""
        common = self.shared.embed(self.shared.tokens[:_COMMON]).float().cpu()
        mean, length = common.mean(dim=0), common.norm(dim=-1).mean()
        begun = mean * (length / mean.norm().clamp_min(_LEAST))
        for embedding in self.embeddings:
            noise = torch.randn(self.sizes.hidden, generator=generator)
            embedding.copy_(begun + _NOISE * common.std(dim=0) * noise)

    def factors(self) -> dict[tuple[int, str], tuple[Tensor, Tensor]]:
        """(layer, product) → down (rank, inputs) and up (outputs, rank), as `Adapter` has them; none without a rank."""
        return {}

    def entry(self) -> Entry | None:
        """Where the rows enter the target's pass; None: as masks do, at its beginning."""
        return None

    def members(self) -> Tensor:
        """(E, m, d) the embeddings by member of the ensemble."""
        return torch.stack(list(self.embeddings)).view(self.sizes.ensemble, self.sizes.masks, self.sizes.hidden)

    def normed(self, states: Tensor) -> Tensor:
        """(…, d) input of the head, from the states (…, E, d) of an ensemble: logits are the mean of its members'."""
        return rms_normalize(states, self.sizes.epsilon).mean(dim=-2)

    def sampled(self, states: Tensor, before: Tensor) -> Tensor | None:
        """(…, 1, d) states that know the tokens before them too, from those of masks (…, E, d) and from embeddings
        (…, d); None where there is no sampler."""
        return None


class Mtp(PromptTokens):
    """Embeddings of masks, a low-rank adapter of every layer's attention for their rows, and the sampler."""

    sizes_type = MtpSizes
    sizes: MtpSizes

    def __init__(self, sizes: MtpSizes, shared: SharedWeights) -> None:
        super().__init__(sizes, shared)
        self.down, self.up = nn.ParameterDict(), nn.ParameterDict()
        widths = {"q": (sizes.queries, sizes.hidden), "k": (sizes.keys, sizes.hidden)}
        widths |= {"v": widths["k"], "o": (sizes.hidden, sizes.queries)}
        for layer in sizes.adapted:
            for name in ADAPTED:
                outputs, inputs = widths[name]
                self.down[f"{layer}_{name}"] = nn.Parameter(torch.empty(sizes.rank, inputs))
                self.up[f"{layer}_{name}"] = nn.Parameter(torch.empty(outputs, sizes.rank))
        if sizes.sampler:
            self.sampler_in = nn.Parameter(torch.empty(sizes.sampler, 2 * sizes.hidden))
            self.sampler_out = nn.Parameter(torch.empty(sizes.hidden, sizes.sampler))

    @classmethod
    def sizes_for(cls, shape: Shape, taps: tuple[int, ...]) -> MtpSizes:
        return MtpSizes(
            shape.hidden, epsilon=shape.epsilon, layers=shape.layers,
            queries=shape.heads * shape.head_dim, keys=shape.kv_heads * shape.head_dim,
            sampler=multiple_of_32(shape.hidden / 2),
        )  # fmt: skip

    @torch.no_grad()
    def begin_(self, generator: torch.Generator) -> None:
        """Adapter and sampler begin by adding nothing."""
        super().begin_(generator)
        for down in self.down.values():
            down.normal_(std=down.shape[1] ** -0.5, generator=generator)
        for up in self.up.values():
            up.zero_()
        if self.sizes.sampler:
            self.sampler_in.normal_(std=self.sampler_in.shape[1] ** -0.5, generator=generator)
            self.sampler_out.zero_()

    def factors(self) -> dict[tuple[int, str], tuple[Tensor, Tensor]]:
        found = {}
        for key, down in self.down.items():
            layer, name = key.split("_")
            found[int(layer), name] = (down, self.up[key])
        return found

    def sampled(self, states: Tensor, before: Tensor) -> Tensor | None:
        if not self.sizes.sampler:
            return None
        epsilon, normed = self.sizes.epsilon, self.normed(states)
        return with_token(self.sampler_in, self.sampler_out, epsilon, normed, before).unsqueeze(-2)


class SpeculativeStreaming(Mtp):
    """Streams: embeddings that tell them apart, a map of their nodes' states, and an adapter of the layers they run
    through."""

    sizes_type = StreamSizes
    sizes: StreamSizes

    def __init__(self, sizes: StreamSizes, shared: SharedWeights) -> None:
        super().__init__(sizes, shared)
        self.map = nn.Parameter(torch.empty(sizes.hidden, sizes.hidden))

    @classmethod
    def sizes_for(cls, shape: Shape, taps: tuple[int, ...]) -> StreamSizes:
        sizes = replace(super().sizes_for(shape, taps), sampler=0).options()
        return StreamSizes(**sizes, first=shape.layers - max(1, round(_STREAMED * shape.layers)))

    @torch.no_grad()
    def begin_(self, generator: torch.Generator) -> None:
        """Begin as the node's own state, once for every stream."""
        super().begin_(generator)
        for parameter in (self.map, *self.embeddings):
            parameter.zero_()

    def entry(self) -> Entry:
        return Entry(self.sizes.first, self.map)


def with_token(first: Tensor, second: Tensor, epsilon: float, states: Tensor, before: Tensor) -> Tensor:
    """(…, d) states and the output of a two-layer MLP on them and on the embeddings of the tokens before them."""
    normed = rms_normalize(states.to(first), epsilon)
    inner = F.linear(torch.cat([normed, rms_normalize(before.to(first), epsilon)], dim=-1), first)
    return normed + F.linear(F.silu(inner), second)


def mask_rows(target: Weights, trained: TrainedDrafter) -> MaskRows:
    """The masks of a trained drafter.

    Raises:
        ConfigError: the sizes that its folder names are wrong.
        WeightsError: its file is damaged, or holds something else.
        ModelError: they were trained for a target of other sizes.
    """

    network = load_network(trained.method, trained.options, trained.weights, lambda tokens: SharedWeights.none())
    assert isinstance(network, PromptTokens), "its drafter asks for masks"
    sizes = network.sizes
    layers = sizes.layers if isinstance(sizes, MtpSizes) else target.layers
    if sizes.hidden != target.hidden_size or layers != target.layers:
        raise ModelError(
            f"trained drafter {trained.name!r} has masks of {sizes.hidden} numbers for {layers} layers; the target has "
            f"{target.hidden_size} and {target.layers} layers"
        )
    factors, entry = network.factors(), network.entry()
    if entry is not None:
        entry = Entry(entry.layer, entry.matrix.detach().to(target.device))
    embeddings = tuple(embedding.detach().to(target.device) for embedding in network.embeddings)
    sampler = None
    if isinstance(network, Mtp) and network.sizes.sampler:
        first, second = (matrix.detach().to(target.device) for matrix in (network.sampler_in, network.sampler_out))
        sampler = partial(with_token, first, second, sizes.epsilon)
    return MaskRows(embeddings, Adapter(factors) if factors else None, sampler, sizes.ensemble, entry)
