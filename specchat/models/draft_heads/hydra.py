"""A sequential MLP on the last state: the cheapest network that still sees the tokens it guessed."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specchat.models.draft_heads.shared_weights import SharedWeights, rms_normalize
from specchat.models.draft_heads.sizes import HydraSizes


class Hydra(nn.Module):
    """Guesses token after token from the target's last state, its own last state and the token between.

    The state of step 1 is made from the target's states at the last token it read and the embedding of the token that
    follows (the root); every later one from the state before it and the embedding of the token guessed there. Each
    state's normed product with the target's head gives the next token's logits. There is no attention: a step reads
    nothing but its two inputs.

    Reference: Ankner et al., Hydra: Sequentially-Dependent Draft Heads for Medusa Decoding, arXiv:2402.05109. Differs:
    states of several layers go in, one MLP serves all depths (its own state comes back, as in EAGLE), and the head is
    the target's.
    """

    def __init__(self, sizes: HydraSizes, shared: SharedWeights) -> None:
        super().__init__()
        self.sizes = sizes
        self.shared = shared
        d = sizes.hidden
        self.fuse = nn.Linear(len(sizes.taps) * d, d, bias=False)
        self.back = nn.Linear(d, d, bias=False)
        self.token = nn.Linear(d, d, bias=False)
        self.mlp_norm = nn.Parameter(torch.ones(d))
        self.gate_up = nn.Linear(d, 2 * sizes.inner, bias=False)
        self.down = nn.Linear(sizes.inner, d, bias=False)
        self.norm = nn.Parameter(torch.ones(d))

    def fused(self, features: Tensor) -> Tensor:
        """(…, d) what step 1 takes of (…, taps, d) states of the target."""
        fused: Tensor = self.fuse(rms_normalize(features, self.sizes.epsilon).flatten(-2))
        return fused

    def fed_back(self, states: Tensor) -> Tensor:
        """(…, d) what the next step takes of (…, d) states of this one."""
        back: Tensor = self.back(rms_normalize(states, self.sizes.epsilon))
        return back

    def of_tokens(self, embedded: Tensor) -> Tensor:
        """(…, d) what a step takes of the embeddings (…, d) of tokens."""
        taken: Tensor = self.token(rms_normalize(embedded, self.sizes.epsilon))
        return taken

    def step(self, inputs: Tensor, tokens: Tensor) -> Tensor:
        """(…, d) states, from what `fused` or `fed_back` and `of_tokens` give."""
        states = inputs + tokens
        gate, up = self.gate_up(rms_normalize(states, self.sizes.epsilon) * self.mlp_norm).chunk(2, dim=-1)
        after: Tensor = states + self.down(F.silu(gate) * up)
        return after

    def logits(self, states: Tensor) -> Tensor:
        """(…, H) logits of the token that follows, for each of the shared tokens."""
        return self.shared.logits(self.normed(states))

    def normed(self, states: Tensor) -> Tensor:
        """(…, d) what the head is multiplied with."""
        return rms_normalize(states, self.sizes.epsilon) * self.norm

    def states(self, fused: Tensor, tokens: Tensor, steps: int) -> list[Tensor]:
        """What `unroll` takes the logits of: (B, S − steps, d) for each step; from (B, S, d) what `fused` gives."""
        anchors = tokens.shape[1] - steps
        inputs, taken, found = fused[:, :anchors], self.of_tokens(self.shared.embed(tokens)), []
        for step in range(1, steps + 1):
            found.append(self.step(inputs, taken[:, step : anchors + step]))
            if step < steps:
                inputs = self.fed_back(found[-1])
        return found

    def unroll(self, features: Tensor, tokens: Tensor, steps: int) -> list[Tensor]:
        """Logits of every step at every place of some texts, from its own states. Differentiable.

        Args:
            features: (B, S, taps, d) the target's states after the tapped layers at every token.
            tokens: (B, S) the texts.

        Returns:
            For each step k = 1 … `steps`, (B, S − steps, H): row t says what follows token t + k, drafted after token t
            was read. It is to be compared with the target's own logits at position t + k.
        """
        return [self.logits(states) for states in self.states(self.fused(features), tokens, steps)]
