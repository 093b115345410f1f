"""Eagle's decoder layer with learned masks behind the text: one pass guesses at several depths."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from specchat.models.draft_heads.eagle import Eagle
from specchat.models.draft_heads.group_attention import KeysValues, attend_in_groups
from specchat.models.draft_heads.shared_weights import SharedWeights
from specchat.models.draft_heads.sizes import ParallelSpecSizes


class ParallelSpec(nn.Module):
    """Guesses the token after the root, and with every mask the token one further on, all in one pass of one layer.

    The layer reads the text as `eagle` does. Behind the root's entry stand masks, pairs of a learned state and a
    learned embedding, each of which sees the text and the masks before it. What is guessed at a depth does not depend
    on the tokens guessed before it.

    Reference: Xiao et al., ParallelSpec: Parallel Drafter for Efficient Speculative Decoding, arXiv:2410.05589; the
    drafter is EAGLE's, and learns by packed groups: at every place of a text stand the entry and its masks, and no
    group sees the masks of another. Differs: every mask has numbers of its own, the head is the target's, states of
    several layers go in, and a deeper guess counts only where those before it were right or nearly so (`chain_loss`).
    """

    def __init__(self, sizes: ParallelSpecSizes, shared: SharedWeights) -> None:
        super().__init__()
        self.sizes = sizes
        self.layer = Eagle(sizes.layer, shared)
        self.mask_states = nn.Parameter(torch.zeros(sizes.masks, sizes.hidden))
        self.mask_tokens = nn.Parameter(torch.zeros(sizes.masks, sizes.hidden))

    @property
    def shared(self) -> SharedWeights:
        """What the layer shares with the target."""
        return self.layer.shared

    @shared.setter
    def shared(self, shared: SharedWeights) -> None:
        self.layer.shared = shared

    @property
    def fuse(self) -> nn.Module:
        """What makes rows of states."""
        return self.layer.fuse

    @property
    def depth(self) -> int:
        """As many tokens ahead are guessed."""
        return 1 + self.sizes.masks

    @property
    def norm(self) -> Tensor:
        """(d,) the weights of the norm in front of the head."""
        return self.layer.norm

    def fused(self, features: Tensor) -> Tensor:
        """(…, d) from (…, taps, d) states of the target."""
        return self.layer.fused(features)

    def of_tokens(self, embedded: Tensor) -> Tensor:
        """(…, d) what the layer takes of the embeddings (…, d) of tokens."""
        return self.layer.of_tokens(embedded)

    def ahead(self, entries: Tensor) -> Tensor:
        """(K, d) states of all depths: they are what the layer makes of the root's entry and the masks."""
        return entries

    def logits(self, states: Tensor) -> Tensor:
        """(…, H) logits of the token that follows, for each of the shared tokens."""
        return self.layer.logits(states)

    def normed(self, states: Tensor) -> Tensor:
        """(…, d) what the head is multiplied with."""
        return self.layer.normed(states)

    def states(self, fused: Tensor, tokens: Tensor, steps: int) -> list[Tensor]:
        """What `unroll` takes the logits of: (B, S − steps, d) for each step; from (B, S, d) what `fused` gives.

        One pass for all places: the group at a place is its entry and `steps` − 1 masks.
        """
        masks, anchors = steps - 1, tokens.shape[1] - steps
        assert 0 <= masks <= self.sizes.masks, f"{self.sizes.masks} masks cannot guess {steps} tokens"
        taken = self.of_tokens(self.shared.embed(tokens[:, 1 : anchors + 1]))
        inputs = _groups(fused[:, :anchors], self.mask_states[:masks])
        places = torch.arange(anchors, device=fused.device)[:, None] + torch.arange(steps, device=fused.device)
        packed = self.layer.before_attention(
            inputs, _groups(taken, self.of_tokens(self.mask_tokens[:masks])), places.flatten()
        )
        residual, queries, keys, values = (each.view(-1, anchors, steps, *each.shape[2:]) for each in packed)
        text, own = KeysValues(keys[:, :, 0], values[:, :, 0]), KeysValues(keys[:, :, 1:], values[:, :, 1:])
        sees = torch.ones(steps, masks, dtype=torch.bool, device=fused.device).tril(-1)
        return list(self.layer.after_attention(residual, attend_in_groups(queries, text, own, sees)).unbind(2))

    def unroll(self, features: Tensor, tokens: Tensor, steps: int) -> list[Tensor]:
        """Logits of every depth at every place of some texts; see `Hydra.unroll`. Differentiable."""
        return [self.logits(states) for states in self.states(self.fused(features), tokens, steps)]


def _groups(entries: Tensor, masks: Tensor) -> Tensor:
    """(B, A · (1 + m), d): each of the (B, A, d) entries, and behind it the (m, d) masks."""
    behind = masks.to(entries.dtype).expand(*entries.shape[:2], *masks.shape)
    return torch.cat([entries[:, :, None], behind], dim=2).flatten(1, 2)
