"""Heads in a row: a running state takes in every token that is guessed."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from specchat.models.draft_heads.decoder_layer import DecoderLayer
from specchat.models.draft_heads.shared_weights import SharedWeights, rms_normalize
from specchat.models.draft_heads.sizes import CloverSizes
from specchat.models.draft_heads.token_attention import TokenAttention


class Clover(nn.Module):
    """Guesses token after token from a running state, to which each token that was guessed is added by attention.

    The target's state at every token of the text takes in the token that follows, and a decoder layer, the augmenting
    block, attends to the text. What it makes of the last entry is the running state: a head guesses from it. A deeper
    head guesses from the running state after it has taken in the token guessed before, and from that token itself.

    Reference: Xiao et al., Clover: Regressive Lightweight Speculative Decoding with Sequential Knowledge,
    arXiv:2405.00263, with what the authors' program XiaoBin1992/clover does: the cosine as the attention's weight, the
    root's token before the augmenting block, and a head that sees the token beside the state. Differs: states of
    several layers of the target go in, one head serves all depths from the second on, so that there is no deepest, and
    the augmenting block's MLP is narrow (two thirds of the width).
    """

    def __init__(self, sizes: CloverSizes, shared: SharedWeights) -> None:
        super().__init__()
        self.sizes = sizes
        self.shared = shared
        d = sizes.hidden
        self.fuse = nn.Linear(len(sizes.taps) * d, d, bias=False)
        self.token_norm = nn.Parameter(torch.ones(d))
        self.root = TokenAttention(d, sizes.token_heads, sizes.epsilon)
        self.augmenting = DecoderLayer(sizes)
        self.guessed = TokenAttention(d, sizes.token_heads, sizes.epsilon)
        self.first = nn.Linear(d, d, bias=False)
        self.later = nn.Linear(2 * d, d, bias=False)
        self.norm = nn.Parameter(torch.ones(d))

    @property
    def text_layers(self) -> tuple[DecoderLayer, ...]:
        """The layers that attend to the text."""
        return (self.augmenting,)

    def fused(self, features: Tensor) -> Tensor:
        """(…, d) what is taken of (…, taps, d) states of the target."""
        fused: Tensor = self.fuse(rms_normalize(features, self.sizes.epsilon).flatten(-2))
        return fused

    def of_tokens(self, embedded: Tensor) -> Tensor:
        """(…, d) what is taken of the embeddings (…, d) of tokens."""
        return rms_normalize(embedded, self.sizes.epsilon) * self.token_norm

    def entries(self, inputs: Tensor, tokens: Tensor, over: Callable[[DecoderLayer, Tensor], Tensor]) -> Tensor:
        """(…, d) running states behind each entry of a text; see `Amphista.entries`."""
        return over(self.augmenting, self.root(inputs, tokens))

    def at_root(self, running: Tensor) -> Tensor:
        """(…, d) states of the first head, from (…, d) what `entries` gives."""
        states: Tensor = running + self.first(rms_normalize(running, self.sizes.epsilon))
        return states

    def step(self, running: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """(…, d) running states with the tokens that were guessed, and (…, d) states of their head.

        Args:
            tokens: (…, d) what `of_tokens` gives.
        """
        running = self.guessed(running, tokens)
        pairs = torch.cat([rms_normalize(running, self.sizes.epsilon), tokens], dim=-1)
        return running, running + self.later(pairs)

    def logits(self, states: Tensor) -> Tensor:
        """(…, H) logits of the token that follows, for each of the shared tokens."""
        return self.shared.logits(self.normed(states))

    def normed(self, states: Tensor) -> Tensor:
        """(…, d) what the head is multiplied with."""
        return rms_normalize(states, self.sizes.epsilon) * self.norm

    def states(self, fused: Tensor, tokens: Tensor, steps: int) -> list[Tensor]:
        """What `unroll` takes the logits of: (B, S − steps, d) for each step; from (B, S, d) what `fused` gives."""
        anchors = tokens.shape[1] - steps
        taken = self.of_tokens(self.shared.embed(tokens))
        running = self.entries(fused[:, :anchors], taken[:, 1 : anchors + 1], DecoderLayer.over_text)
        found = [self.at_root(running)]
        for step in range(2, steps + 1):
            running, states = self.step(running, taken[:, step : anchors + step])
            found.append(states)
        return found

    def unroll(self, features: Tensor, tokens: Tensor, steps: int) -> list[Tensor]:
        """Logits of every step at every place of some texts; see `Hydra.unroll`. Differentiable."""
        return [self.logits(states) for states in self.states(self.fused(features), tokens, steps)]
