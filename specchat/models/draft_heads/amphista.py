"""Parallel heads that know of each other: all depths guessed in one call."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specchat.models.draft_heads.decoder_layer import DecoderLayer
from specchat.models.draft_heads.shared_weights import SharedWeights, rms_normalize
from specchat.models.draft_heads.sizes import AmphistaSizes


class Amphista(nn.Module):
    """Guesses the tokens at several depths at once, after the heads of all depths have attended to each other.

    Two causal layers over the text adapt the target's states to guessing ahead. The first reads the states, the second
    what the first makes of them together with the token that follows each. Of the result at the root every head makes
    an input of its own, to which a learnt code of its depth is added; in the auto-embedding block these inputs all
    attend to each other, in both directions. What is guessed does not depend on the tokens guessed before, so one call
    serves a whole tree.

    Reference: after Li et al., Amphista: Bi-directional Multi-head Decoding for Accelerating LLM Inference,
    arXiv:2406.13170; that there are two adaptation layers and one block is from memory. Differs: states of several
    layers of the target go in, and all MLPs are narrow (two thirds of the width).
    """

    def __init__(self, sizes: AmphistaSizes, shared: SharedWeights) -> None:
        super().__init__()
        self.sizes = sizes
        self.shared = shared
        d = sizes.hidden
        self.fuse = nn.Linear(len(sizes.taps) * d, d, bias=False)
        self.token = nn.Linear(d, d, bias=False)
        self.first = DecoderLayer(sizes)
        self.second = DecoderLayer(sizes)
        self.blocks = nn.Linear(d, sizes.positions * d, bias=False)
        self.code = nn.Parameter(torch.ones(sizes.positions, d))
        self.auto_embedding = DecoderLayer(sizes)
        self.norm = nn.Parameter(torch.ones(d))

    @property
    def depth(self) -> int:
        """As many tokens ahead are guessed."""
        return self.sizes.positions

    @property
    def text_layers(self) -> tuple[DecoderLayer, ...]:
        """The layers that attend to the text."""
        return self.first, self.second

    def fused(self, features: Tensor) -> Tensor:
        """(…, d) what is taken of (…, taps, d) states of the target."""
        fused: Tensor = self.fuse(rms_normalize(features, self.sizes.epsilon).flatten(-2))
        return fused

    def of_tokens(self, embedded: Tensor) -> Tensor:
        """(…, d) what is taken of the embeddings (…, d) of the tokens that follow."""
        taken: Tensor = self.token(rms_normalize(embedded, self.sizes.epsilon))
        return taken

    def entries(self, inputs: Tensor, tokens: Tensor, over: Callable[[DecoderLayer, Tensor], Tensor]) -> Tensor:
        """(…, d) what the heads begin with at each entry of a text, from what `fused` and `of_tokens` give.

        Args:
            over: a layer and (…, d) states → what the layer makes of them where they stand in the text.
        """
        return over(self.second, over(self.first, inputs) + tokens)

    def ahead(self, entries: Tensor) -> Tensor:
        """(…, K, d) states of all depths, from (…, d) what `entries` gives."""
        blocks = self.blocks(rms_normalize(entries, self.sizes.epsilon)).unflatten(-1, (self.depth, self.sizes.hidden))
        return self.auto_embedding.among(entries.unsqueeze(-2) + F.silu(blocks) + self.code)

    def logits(self, states: Tensor) -> Tensor:
        """(…, H) logits of the token that follows, for each of the shared tokens."""
        return self.shared.logits(self.normed(states))

    def normed(self, states: Tensor) -> Tensor:
        """(…, d) what the head is multiplied with."""
        return rms_normalize(states, self.sizes.epsilon) * self.norm

    def states(self, fused: Tensor, tokens: Tensor, steps: int) -> list[Tensor]:
        """What `unroll` takes the logits of: (B, S − steps, d) for each step; from (B, S, d) what `fused` gives."""
        assert 1 <= steps <= self.depth, f"{self.depth} heads cannot guess {steps} tokens"
        anchors = tokens.shape[1] - steps
        taken = self.of_tokens(self.shared.embed(tokens[:, 1 : anchors + 1]))
        return list(self.ahead(self.entries(fused[:, :anchors], taken, DecoderLayer.over_text)).unbind(-2)[:steps])

    def unroll(self, features: Tensor, tokens: Tensor, steps: int) -> list[Tensor]:
        """Logits of every depth at every place of some texts; see `Hydra.unroll`. Differentiable."""
        return [self.logits(states) for states in self.states(self.fused(features), tokens, steps)]
