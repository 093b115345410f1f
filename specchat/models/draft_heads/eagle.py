"""One decoder layer on the target's states: it attends to the text and to its own guesses."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specchat.models.draft_heads.group_attention import KeysValues, attend_in_groups, side_by_side
from specchat.models.draft_heads.rotation import Rotation
from specchat.models.draft_heads.shared_weights import SharedWeights, rms_normalize
from specchat.models.draft_heads.sizes import EagleSizes


class Eagle(nn.Module):
    """Guesses token after token with one decoder layer, whose own output stands in for the target's states.

    An entry of its text pairs the fused states of the target at one token with the embedding of the token that
    follows. Drafting goes on from there with pairs of its own output and the token guessed. Both halves are normed
    and go into queries, keys and values side by side.

    Reference: Li et al., EAGLE-3, arXiv:2503.01840. Differs in what we train ourselves: every tapped state is normed
    before the taps are fused (`unit_taps`), and the head is the target's. The loss has EAGLE's distance of states too,
    which EAGLE-3 dropped, and a chain counts only as long as its guesses were right or nearly so (see `chain_loss`).
    """

    def __init__(self, sizes: EagleSizes, shared: SharedWeights) -> None:
        super().__init__()
        self.sizes = sizes
        self.shared = shared
        d, queries = sizes.hidden, sizes.heads * sizes.head_dim
        self.fuse = nn.Linear(len(sizes.taps) * d, d, bias=False)
        self.token_norm = nn.Parameter(torch.ones(d))
        self.state_norm = nn.Parameter(torch.ones(d))
        self.qkv = nn.Linear(2 * d, queries + 2 * sizes.kv_heads * sizes.head_dim, bias=False)
        self.o = nn.Linear(queries, d, bias=False)
        self.mlp_norm = nn.Parameter(torch.ones(d))
        self.gate_up = nn.Linear(d, 2 * sizes.inner, bias=False)
        self.down = nn.Linear(sizes.inner, d, bias=False)
        self.norm = nn.Parameter(torch.ones(d))
        self.rotation = Rotation(sizes.theta, sizes.head_dim)

    def fused(self, features: Tensor) -> Tensor:
        """(…, d) from (…, taps, d) states of the target."""
        taken = rms_normalize(features, self.sizes.epsilon) if self.sizes.unit_taps else features
        fused: Tensor = self.fuse(taken.flatten(-2))
        return fused

    def of_tokens(self, embedded: Tensor) -> Tensor:
        """(…, d) what a step takes of the embeddings (…, d) of tokens."""
        return rms_normalize(embedded, self.sizes.epsilon) * self.token_norm

    def before_attention(
        self, inputs: Tensor, tokens: Tensor, positions: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """What attention's output is added to, (…, A, d); queries, keys and values, (…, A, heads, head_dim), rotated.

        Args:
            inputs: (…, A, d) fused states, or states of the step before.
            tokens: (…, A, d) what `of_tokens` gives for the tokens that follow them.
            positions: (A,) of the entries.
        """
        sizes = self.sizes
        normed = rms_normalize(inputs, sizes.epsilon) * self.state_norm
        pairs = torch.cat([tokens, normed], dim=-1)
        heads = self.qkv(pairs).unflatten(-1, (sizes.heads + 2 * sizes.kv_heads, sizes.head_dim))
        rotating = sizes.heads + sizes.kv_heads
        rotated = self.rotation(heads[..., :rotating, :], positions)
        residual = normed if sizes.norm_residual else inputs
        return residual, rotated[..., : sizes.heads, :], rotated[..., sizes.heads :, :], heads[..., rotating:, :]

    def after_attention(self, residual: Tensor, mixed: Tensor) -> Tensor:
        """(…, d) the layer's output, from (…, d) and (…, heads · head_dim)."""
        states = residual + self.o(mixed)
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
        taken = self.of_tokens(self.shared.embed(tokens))
        found, before = [fused[:, :anchors]], list[KeysValues]()
        for step in range(1, steps + 1):
            found.append(self._step(found[-1], taken[:, step : anchors + step], before))
        return found[1:]

    def unroll(self, features: Tensor, tokens: Tensor, steps: int) -> list[Tensor]:
        """Logits of every step at every place of some texts; see `Hydra.unroll`. Differentiable."""
        return [self.logits(states) for states in self.states(self.fused(features), tokens, steps)]

    def _step(self, inputs: Tensor, tokens: Tensor, before: list[KeysValues]) -> Tensor:
        """(B, A, d) one step at every place: each sees the text's entries up to its own, then its own guesses.

        Args:
            before: of the earlier steps, the first of which is the text; this one comes to them.
        """
        first, places = len(before), inputs.shape[1]
        positions = torch.arange(first, first + places, device=inputs.device)
        residual, queries, keys, values = self.before_attention(inputs, tokens, positions)
        before.append(KeysValues(keys, values))
        text, *guesses = before
        own = side_by_side(guesses, text)
        sees = torch.ones(1, first, dtype=torch.bool, device=inputs.device)
        return self.after_attention(residual, attend_in_groups(queries[:, :, None], text, own, sees)[:, :, 0])
