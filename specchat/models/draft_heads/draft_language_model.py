"""A small language model with the target's embedding and head, trained to say what the target says."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from specchat.models.decoder.differentiable_layer import layer_output
from specchat.models.decoder.shape import AttentionKind, Shape
from specchat.models.draft_heads.shared_weights import SharedWeights, rms_normalize
from specchat.models.draft_heads.sizes import DraftModelSizes

_MATRICES = ("q", "k", "v", "o", "gate", "up", "down")
_NORMS = ("input_norm", "mlp_norm")


class DraftLanguageModel(nn.Module):
    """Decoder layers of Llama's shape between the target's embedding and its head, both frozen and not kept twice.

    It reads tokens alone, so that nothing of the target's passes goes into a guess, and it drafts as every draft model
    does. Rows of its queries and keys that rotate together lie side by side.

    Reference: Zhou et al., DistillSpec, arXiv:2310.08461; Goel et al., Direct Alignment of Draft Model for Speculative
    Decoding with Chat-Fine-Tuned LLMs, arXiv:2403.00858. Differs: it is not trained as a language model first, texts
    are the target's own, none are drawn from the draft model, and embedding and head stay the target's.
    """

    def __init__(self, sizes: DraftModelSizes, shared: SharedWeights) -> None:
        super().__init__()
        self.sizes = sizes
        self.shared = shared
        self.shape = shape_of(sizes)
        self.layers = nn.ModuleList(
            nn.ParameterDict(
                {name: torch.empty(self.shape.matrix(name)) for name in _MATRICES}
                | {name: torch.ones(sizes.hidden) for name in _NORMS}
            )
            for _ in range(sizes.layers)
        )
        self.norm = nn.Parameter(torch.ones(sizes.hidden))

    def dense(self, name: str, layer: int | None = None, part: str = "weight") -> Tensor:
        """A weight of a layer, or `norm`, the factors between the last state and the head."""
        return self.get_parameter(name if layer is None else f"layers.{layer}.{name}")

    def has(self, name: str, layer: int | None = None, part: str = "weight") -> bool:
        """Whether there is such a weight; nothing has a bias."""
        return part == "weight" and name in (("norm",) if layer is None else (*_MATRICES, *_NORMS))

    def fused(self, features: Tensor) -> Tensor:
        """What it takes of the target's states: nothing."""
        return features[..., :0]

    def states(self, fused: Tensor, tokens: Tensor, steps: int) -> list[Tensor]:
        """(B, S − steps, d) for each step, after the texts' own tokens: what a chain reads as long as it is right."""
        hidden = self.shared.embed(tokens)
        for layer in range(self.sizes.layers):
            hidden = layer_output(self.shape, self, layer, hidden)
        anchors = tokens.shape[1] - steps
        return [hidden[:, step : anchors + step] for step in range(1, steps + 1)]

    def logits(self, states: Tensor) -> Tensor:
        """(…, H) logits of the token that follows, for each of the shared tokens."""
        return self.shared.logits(self.normed(states))

    def normed(self, states: Tensor) -> Tensor:
        """(…, d) what the head is multiplied with."""
        return rms_normalize(states, self.sizes.epsilon) * self.norm

    def unroll(self, features: Tensor, tokens: Tensor, steps: int) -> list[Tensor]:
        """Logits of every step at every place of some texts; see `Hydra.unroll`. Differentiable."""
        return [self.logits(states) for states in self.states(self.fused(features), tokens, steps)]


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
