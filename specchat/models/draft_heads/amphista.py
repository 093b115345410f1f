"""Amphista: parallel heads that attend to each other, all depths guessed in one call."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from specchat.models.draft_heads.drafting import DraftingInputs, Over, ParallelDrafting, WholeText
from specchat.models.draft_heads.head import DraftHead, Recipe, SharedWeights
from specchat.models.draft_heads.layers import DecoderLayer, by_depth
from specchat.models.draft_heads.sizes import MOST_DEPTH, LayerSizes, size


@dataclass(frozen=True)
class AmphistaSizes(LayerSizes):
    """Sizes of `amphista`; `positions` tokens ahead are guessed."""

    positions: int = size(MOST_DEPTH, default=4)


class Amphista(DraftHead[AmphistaSizes]):
    """Guesses the tokens at several depths at once, after the heads of all depths have attended to each other.

    Two causal layers over the text adapt the target's states to guessing ahead. The first reads the states, the second
    the output of the first together with the token that follows each. Of the result at the root every head makes
    an input of its own, to which a learnt code of its depth is added; in the auto-embedding block these inputs all
    attend to each other, in both directions. Guesses do not depend on the tokens guessed before, so one call serves a
    whole tree.

    Reference: after Li et al., Amphista: Bi-directional Multi-head Decoding for Accelerating LLM Inference,
    arXiv:2406.13170; that there are two adaptation layers and one block is from memory. Differs: states of several
    layers of the target go in, and all MLPs are narrow (two thirds of the width).
    """

    recipe = Recipe(reads_back=True, steps=4)
    sizes_type = AmphistaSizes

    def __init__(self, sizes: AmphistaSizes, shared: SharedWeights) -> None:
        super().__init__(sizes, shared)
        d = sizes.hidden
        self.token = nn.Linear(d, d, bias=False)
        self.first = DecoderLayer(sizes)
        self.second = DecoderLayer(sizes)
        self.blocks = nn.Linear(d, sizes.positions * d, bias=False)
        self.code = nn.Parameter(torch.ones(sizes.positions, d))
        self.auto_embedding = DecoderLayer(sizes)

    @property
    def added(self) -> tuple[Tensor, ...]:
        return *self.first.added, *self.second.added, *self.auto_embedding.added

    def entries(self, inputs: Tensor, tokens: Tensor, over: Over) -> Tensor:
        """(…, d) states that the heads begin with at each entry of a text, from outputs of `fused` and `of_tokens`."""
        return over(self.second, over(self.first, inputs) + tokens)

    def ahead(self, entries: Tensor) -> Tensor:
        """(…, K, d) states of all depths, from (…, d) outputs of `entries`."""
        return self.auto_embedding.among(by_depth(self.blocks, entries, self.sizes.epsilon) + self.code)

    def states(self, fused: Tensor, tokens: Tensor, steps: int) -> list[Tensor]:
        assert 1 <= steps <= self.sizes.positions, f"{self.sizes.positions} heads cannot guess {steps} tokens"
        anchors = tokens.shape[1] - steps
        taken = self.of_tokens(self.shared.embed(tokens[:, 1 : anchors + 1]))
        return list(self.ahead(self.entries(fused[:, :anchors], taken, DecoderLayer.over_text)).unbind(-2)[:steps])

    def drafting(self, given: DraftingInputs) -> ParallelDrafting:
        reading = WholeText((self.first, self.second), self.entries, given)
        return ParallelDrafting(self.sizes.taps, self.sizes.positions, self.ahead, reading, given)
