"""Medusa: parallel heads on the last state, all depths guessed in one call."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from specchat.models.draft_heads.drafting import DraftingInputs, LastEntryAlone, ParallelDrafting
from specchat.models.draft_heads.head import DraftHead, Recipe, SharedWeights
from specchat.models.draft_heads.layers import by_depth
from specchat.models.draft_heads.sizes import MOST_DEPTH, Sizes, size


@dataclass(frozen=True)
class MedusaSizes(Sizes):
    """Sizes of `medusa`; `heads` tokens ahead are guessed."""

    heads: int = size(MOST_DEPTH, default=4)


class Medusa(DraftHead[MedusaSizes]):
    """Guesses the tokens at several depths at once, each depth by a residual block of its own.

    A guess at a depth does not depend on the tokens guessed before it, so one call serves a whole tree.

    Reference: Cai et al., Medusa: Simple LLM Inference Acceleration Framework with Multiple Decoding Heads,
    arXiv:2401.10774. Differs: states of several layers and the embedding of the root's token go in (the root is known
    when we draft, its state is not), and the head is the target's.
    """

    recipe = Recipe(reads_back=False, steps=4)
    sizes_type = MedusaSizes

    def __init__(self, sizes: MedusaSizes, shared: SharedWeights) -> None:
        super().__init__(sizes, shared)
        d = sizes.hidden
        self.token = nn.Linear(d, d, bias=False)
        self.blocks = nn.Linear(d, sizes.heads * d, bias=False)

    def entries(self, inputs: Tensor, tokens: Tensor) -> Tensor:
        """(…, d) states that the heads begin with, from the outputs of `fused` and `of_tokens`."""
        return inputs + tokens

    def ahead(self, entries: Tensor) -> Tensor:
        """(…, heads, d) states of all depths, from (…, d) outputs of `entries`."""
        return by_depth(self.blocks, entries, self.sizes.epsilon)

    def states(self, fused: Tensor, tokens: Tensor, steps: int) -> list[Tensor]:
        assert 1 <= steps <= self.sizes.heads, f"{self.sizes.heads} heads cannot guess {steps} tokens"
        anchors = tokens.shape[1] - steps
        taken = self.of_tokens(self.shared.embed(tokens[:, 1 : anchors + 1]))
        return list(self.ahead(self.entries(fused[:, :anchors], taken)).unbind(-2)[:steps])

    def drafting(self, given: DraftingInputs) -> ParallelDrafting:
        sizes = self.sizes
        return ParallelDrafting(sizes.taps, sizes.heads, self.ahead, LastEntryAlone(self.entries, given), given)
