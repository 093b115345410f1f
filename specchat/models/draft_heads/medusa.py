"""Parallel heads on the last state: all depths guessed in one call."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specchat.models.draft_heads.shared_weights import SharedWeights, rms_normalize
from specchat.models.draft_heads.sizes import MedusaSizes


class Medusa(nn.Module):
    """Guesses the tokens at several depths at once, each depth by a residual block of its own.

    What is guessed at a depth does not depend on the tokens guessed before it, so one call serves a whole tree.

    Reference: Cai et al., Medusa: Simple LLM Inference Acceleration Framework with Multiple Decoding Heads,
    arXiv:2401.10774. Differs: states of several layers and the embedding of the root's token go in (the root is known
    when we draft, its state is not), and the head is the target's.
    """

    def __init__(self, sizes: MedusaSizes, shared: SharedWeights) -> None:
        super().__init__()
        self.sizes = sizes
        self.shared = shared
        d = sizes.hidden
        self.fuse = nn.Linear(len(sizes.taps) * d, d, bias=False)
        self.token = nn.Linear(d, d, bias=False)
        self.blocks = nn.Linear(d, sizes.heads * d, bias=False)
        self.norm = nn.Parameter(torch.ones(d))

    @property
    def depth(self) -> int:
        """As many tokens ahead are guessed."""
        return self.sizes.heads

    def fused(self, features: Tensor) -> Tensor:
        """(…, d) what is taken of (…, taps, d) states of the target."""
        fused: Tensor = self.fuse(rms_normalize(features, self.sizes.epsilon).flatten(-2))
        return fused

    def of_tokens(self, embedded: Tensor) -> Tensor:
        """(…, d) what is taken of the embeddings (…, d) of the tokens that follow."""
        taken: Tensor = self.token(rms_normalize(embedded, self.sizes.epsilon))
        return taken

    def entries(self, inputs: Tensor, tokens: Tensor) -> Tensor:
        """(…, d) what the heads begin with, from what `fused` and `of_tokens` give."""
        return inputs + tokens

    def ahead(self, entries: Tensor) -> Tensor:
        """(…, heads, d) states of all depths, from (…, d) what `entries` gives."""
        blocks = self.blocks(rms_normalize(entries, self.sizes.epsilon)).unflatten(
            -1, (self.sizes.heads, self.sizes.hidden)
        )
        states: Tensor = entries.unsqueeze(-2) + F.silu(blocks)
        return states

    def logits(self, states: Tensor) -> Tensor:
        """(…, H) logits of the token that follows, for each of the shared tokens."""
        return self.shared.logits(self.normed(states))

    def normed(self, states: Tensor) -> Tensor:
        """(…, d) what the head is multiplied with."""
        return rms_normalize(states, self.sizes.epsilon) * self.norm

    def states(self, fused: Tensor, tokens: Tensor, steps: int) -> list[Tensor]:
        """What `unroll` takes the logits of: (B, S − steps, d) for each step; from (B, S, d) what `fused` gives."""
        assert 1 <= steps <= self.sizes.heads, f"{self.sizes.heads} heads cannot guess {steps} tokens"
        anchors = tokens.shape[1] - steps
        taken = self.of_tokens(self.shared.embed(tokens[:, 1 : anchors + 1]))
        return list(self.ahead(self.entries(fused[:, :anchors], taken)).unbind(-2)[:steps])

    def unroll(self, features: Tensor, tokens: Tensor, steps: int) -> list[Tensor]:
        """Logits of every depth at every place of some texts; see `Hydra.unroll`. Differentiable."""
        return [self.logits(states) for states in self.states(self.fused(features), tokens, steps)]
