"""A trained family that the package does not have, written as one would be: one file."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specchat.core.drafting_networks import Ahead, Guessed
from specchat.core.tree import ROOT, TokenTree
from specchat.models.decoder.shape import Shape
from specchat.models.draft_heads.drafting import Drafting, DraftingInputs
from specchat.models.draft_heads.head import DraftHead, Recipe, SharedWeights
from specchat.models.draft_heads.sizes import Sizes


class MixingHead(DraftHead[Sizes]):
    """Adds each token's embedding to the state before it. Reference: none."""

    recipe = Recipe(reads_back=False, steps=2)
    sizes_type = Sizes

    def __init__(self, sizes: Sizes, shared: SharedWeights) -> None:
        super().__init__(sizes, shared, token_norm=True)

    @classmethod
    def sizes_for(cls, shape: Shape, taps: tuple[int, ...]) -> Sizes:
        return Sizes(shape.hidden, taps, epsilon=shape.epsilon)

    def states(self, fused: Tensor, tokens: Tensor, steps: int) -> list[Tensor]:
        anchors = tokens.shape[1] - steps
        taken = self.of_tokens(self.shared.embed(tokens))
        found = [fused[:, :anchors]]
        for step in range(1, steps + 1):
            found.append(found[-1] + taken[:, step : anchors + step])
        return found[1:]

    def drafting(self, given: DraftingInputs) -> Drafting:
        return _Drafting(self.sizes.taps, given)


class _Drafting(Drafting):
    def begin(self, history: Sequence[int], ahead: Ahead | None = None) -> bool:
        self._entries, self._states = len(history) - 1, dict[int, Tensor]()
        return self.given.complete(history)

    @torch.inference_mode()
    def read(self, tree: TokenTree, nodes: Sequence[int]) -> Guessed:
        self._counted += 1
        for node in nodes:
            root = node == ROOT
            before = self.given.text.rows(self._entries - 1, self._entries)[0] if root else self._above(tree, node)
            self._states[node] = before + self.given.tokens.of([tree.tokens[node]])[0]
        return self.given.guessed(torch.stack([self._states[node] for node in nodes]))

    def _above(self, tree: TokenTree, node: int) -> Tensor:
        return self._states[tree.parents[node]]
