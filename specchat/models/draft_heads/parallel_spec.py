"""ParallelSpec: EAGLE's decoder layer with learned masks behind the text, one pass guesses at several depths."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from specchat.models.draft_heads.drafting import DraftingInputs, ParallelDrafting
from specchat.models.draft_heads.eagle import Eagle, LayerReading
from specchat.models.draft_heads.head import Recipe, SharedWeights
from specchat.models.draft_heads.layers import KeysValues, attend_in_groups
from specchat.models.draft_heads.sizes import MOST_DEPTH, LayerSizes, size


@dataclass(frozen=True)
class ParallelSpecSizes(LayerSizes):
    """Sizes of `parallel_spec`; `masks` tokens are guessed in one pass besides the first."""

    mlp_width: ClassVar[float] = 8 / 3

    masks: int = size(MOST_DEPTH, default=3)


class ParallelSpec(Eagle):
    """Guesses the token after the root, and with every mask the token one further on, all in one pass of one layer.

    The layer reads the text as `eagle` does. Behind the root's entry stand masks, pairs of a learned state and a
    learned embedding, each of which sees the text and the masks before it. A guess at a depth does not depend on the
    tokens guessed before it.

    Reference: Xiao et al., ParallelSpec: Parallel Drafter for Efficient Speculative Decoding, arXiv:2410.05589; the
    drafter is EAGLE's, and learns by packed groups: at every place of a text stand the entry and its masks, and no
    group sees the masks of another. Differs: every mask has numbers of its own, the head is the target's, states of
    several layers go in, and a deeper guess counts only where those before it were right or nearly so (`chain_loss`).
    """

    recipe = Recipe(reads_back=True, steps=4)
    sizes_type = ParallelSpecSizes

    def __init__(self, sizes: ParallelSpecSizes, shared: SharedWeights) -> None:
        super().__init__(sizes, shared)
        self.masks = sizes.masks
        self.mask_states = nn.Parameter(torch.zeros(sizes.masks, sizes.hidden))
        self.mask_tokens = nn.Parameter(torch.zeros(sizes.masks, sizes.hidden))

    def stored_name(self, name: str) -> str:
        """The decoder layer's tensors stand below `layer.` in files."""
        return name if name in ("mask_states", "mask_tokens") else f"layer.{name}"

    def states(self, fused: Tensor, tokens: Tensor, steps: int) -> list[Tensor]:
        """As `DraftNetwork.states`, in one pass: the group at a place is its entry and `steps` − 1 masks."""
        masks, anchors = steps - 1, tokens.shape[1] - steps
        assert 0 <= masks <= self.masks, f"{self.masks} masks cannot guess {steps} tokens"
        taken = self.of_tokens(self.shared.embed(tokens[:, 1 : anchors + 1]))
        inputs = _groups(fused[:, :anchors], self.mask_states[:masks])
        places = torch.arange(anchors, device=fused.device)[:, None] + torch.arange(steps, device=fused.device)
        packed = self.before_attention(
            inputs, _groups(taken, self.of_tokens(self.mask_tokens[:masks])), places.flatten()
        )
        residual, queries, keys, values = (each.view(-1, anchors, steps, *each.shape[2:]) for each in packed)
        text, own = KeysValues(keys[:, :, 0], values[:, :, 0]), KeysValues(keys[:, :, 1:], values[:, :, 1:])
        sees = torch.ones(steps, masks, dtype=torch.bool, device=fused.device).tril(-1)
        return list(self.after_attention(residual, attend_in_groups(queries, text, own, sees)).unbind(2))

    def drafting(self, given: DraftingInputs) -> ParallelDrafting:
        with torch.inference_mode():
            reading = LayerReading(self, given, (self.mask_states, self.of_tokens(self.mask_tokens)))
        return ParallelDrafting(self.sizes.taps, 1 + self.masks, lambda entries: entries, reading, given)


def _groups(entries: Tensor, masks: Tensor) -> Tensor:
    """(B, A · (1 + m), d): each of the (B, A, d) entries, and behind it the (m, d) masks."""
    behind = masks.to(entries.dtype).expand(*entries.shape[:2], *masks.shape)
    return torch.cat([entries[:, :, None], behind], dim=2).flatten(1, 2)
