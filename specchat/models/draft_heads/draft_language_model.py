"""A small language model with the target's embedding and head, trained to say what the target says."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from specchat.errors import ConfigError
from specchat.models.decoder.differentiable_layer import DifferentiableLayer
from specchat.models.decoder.shape import AttentionKind, Shape
from specchat.models.draft_heads.head import DraftNetwork, Recipe, SharedWeights
from specchat.models.draft_heads.layers import rms_normalize
from specchat.models.draft_heads.sizes import MOST_DEPTH, DecoderSizes, multiple_of_32, size

TRAINED_LAYERS = 2
"""Each takes about as long as a layer of the target, in every step of a draft."""

_MATRICES = ("q", "k", "v", "o", "gate", "up", "down")
_NORMS = ("input_norm", "mlp_norm")


@dataclass(frozen=True, kw_only=True)
class DraftModelSizes(DecoderSizes):
    """Sizes of the language model that is trained for `draft_model`, with so many decoder `layers`.

    `depths` are the numbers of layers that were trained to guess by themselves, all of them the last; empty where only
    all of them were.
    """

    layers: int = size(MOST_DEPTH)
    depths: tuple[int, ...] = size(MOST_DEPTH, default=())

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.depths and self.depths[-1] != self.layers:
            raise ConfigError(f"depths = {list(self.depths)} does not end with layers = {self.layers}")


class DraftLanguageModel(DraftNetwork[DraftModelSizes]):
    """Decoder layers of Llama's shape between the target's embedding and its head, both frozen and not kept twice.

    It reads tokens alone, none of the target's states, and it drafts as every draft model does. Rows of its queries
    and keys that rotate together lie side by side.

    Reference: Zhou et al., DistillSpec, arXiv:2310.08461; Goel et al., Direct Alignment of Draft Model for Speculative
    Decoding with Chat-Fine-Tuned LLMs, arXiv:2403.00858; several `depths` in one: Kavehzadeh et al., S2D: Sorted
    Speculative Decoding, arXiv:2407.01955. Differs: embedding and head stay the target's.
    """

    recipe = Recipe(reads_back=True, distils=True)
    sizes_type = DraftModelSizes

    def __init__(self, sizes: DraftModelSizes, shared: SharedWeights) -> None:
        super().__init__(sizes, shared)
        self.shape = shape_of(sizes)
        self.layers = nn.ModuleList(
            nn.ParameterDict(
                {name: torch.empty(self.shape.matrix(name)) for name in _MATRICES}
                | {name: torch.ones(sizes.hidden) for name in _NORMS}
            )
            for _ in range(sizes.layers)
        )
        self.norm = nn.Parameter(torch.ones(sizes.hidden))

    @classmethod
    def sizes_for(cls, shape: Shape, taps: tuple[int, ...]) -> DraftModelSizes:
        return DraftModelSizes(
            shape.hidden, epsilon=shape.epsilon, layers=TRAINED_LAYERS, inner=multiple_of_32(8 * shape.hidden / 3),
            heads=shape.heads, kv_heads=shape.kv_heads, head_dim=shape.head_dim,
        )  # fmt: skip

    @property
    def added(self) -> tuple[Tensor, ...]:
        return tuple(self.dense(name, layer) for layer in range(self.sizes.layers) for name in ("o", "down"))

    def dense(self, name: str, layer: int | None = None, part: str = "weight") -> Tensor:
        """A weight of a layer, or `norm`, the factors between the last state and the head."""
        return self.get_parameter(name if layer is None else f"layers.{layer}.{name}")

    def has(self, name: str, layer: int | None = None, part: str = "weight") -> bool:
        """Whether there is such a weight; nothing has a bias."""
        return part == "weight" and name in (("norm",) if layer is None else (*_MATRICES, *_NORMS))

    def normed(self, states: Tensor) -> Tensor:
        return rms_normalize(states, self.sizes.epsilon) * self.norm

    def states(self, fused: Tensor, tokens: Tensor, steps: int) -> list[Tensor]:
        """As `DraftNetwork.states`, after the texts' own tokens: those of a chain as long as it is right."""
        hidden, anchors = self._after_depths(tokens)[-1], tokens.shape[1] - steps
        return [hidden[:, step : anchors + step] for step in range(1, steps + 1)]

    def states_by_depth(self, fused: Tensor, tokens: Tensor) -> list[Tensor]:
        """As `DraftNetwork.states_by_depth`, the states after the layers up to each of `depths`."""
        return [hidden[:, 1:] for hidden in self._after_depths(tokens)]

    def _after_depths(self, tokens: Tensor) -> list[Tensor]:
        """(B, S, d) states of (B, S) tokens after each of `depths`; after the last layer alone where there are none."""
        hidden, found = self.shared.embed(tokens), []
        for layer in range(self.sizes.layers):
            hidden = DifferentiableLayer(self.shape, self, layer)(hidden)
            if layer + 1 in (self.sizes.depths or (self.sizes.layers,)):
                found.append(hidden)
        return found


def shape_of(sizes: DraftModelSizes, vocab_size: int = 0, *, tied: bool = True, embedding_scale: float = 1.0) -> Shape:
    """The shape of a decoder of these sizes, with the embedding and the head of its target.

    Args:
        vocab_size: V.
        tied: whether the embedding is the head as well.
        embedding_scale: factor on embeddings.
    """
    pairs = torch.arange(0, sizes.head_dim, 2, dtype=torch.float32, device="cpu")  # a module may be made on `meta`
    angles = sizes.theta ** -(pairs / sizes.head_dim)
    return Shape(
        layers=sizes.layers, hidden=sizes.hidden, heads=sizes.heads, kv_heads=sizes.kv_heads, head_dim=sizes.head_dim,
        vocab_size=vocab_size, epsilon=sizes.epsilon, inner=sizes.inner, tied=tied,
        attention_kinds=(AttentionKind(None, angles),), kind_of=(0,) * sizes.layers, embedding_scale=embedding_scale,
    )  # fmt: skip
