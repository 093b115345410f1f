"""The target's first layers draft for the whole target; which exit and how far is chosen round by round."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from specchat.core.context import Context
from specchat.core.device_copy import to_device
from specchat.core.reading import Reading
from specchat.core.round import Round
from specchat.core.seams import Proposal
from specchat.core.tree import ROOT, TokenTree
from specchat.drafters.inner_drafter import InnerDrafter
from specchat.drafters.network_proposals import for_frontier
from specchat.drafters.options import EarlyExitOptions
from specchat.drafters.parts import Parts
from specchat.drafters.shadow_tokens import LONGEST, ShadowTokens, exits_of
from specchat.drafters.target_view import ViewDrafting

_BETTER = 1.02
"""Another exit is taken where it promises so many times the tokens per layer: changing copies the text's rows."""

_LOOK_EVERY = 8
"""While no draft pays, shadow tokens are looked at in every so many rounds: the head on all exits takes time."""


class EarlyExit(InnerDrafter[ViewDrafting]):
    """Drafts with the target's first layers and its head, on the target's own rows of the text.

    Each pass of the target also says what every exit would have guessed: its head is applied to the states that the
    exits left behind (*shadow tokens*). From how often they were right follow the exit and the length that give the
    most tokens per layer computed, and how sure a guess must be for the draft to go on. Where no draft pays none is
    made, and now and then shadow tokens tell whether one would.

    Before anything is known the middle exit drafts as far as it is asked. Above temperature 0 an exit counts as right
    where it names the target's likeliest token.

    Reference: after Entezari Zarch et al., DEL, arXiv:2504.05598; Elhoushi et al., LayerSkip, arXiv:2404.16710.
    Differs: `exits` layers at equal distances are compared, not all; models were not trained to exit early. The
    threshold of the dynamic exit is ours.
    """

    def __init__(self, options: EarlyExitOptions, parts: Parts) -> None:
        self._target = parts.target
        self._exits = exits_of(parts.target.layers, options.exits)
        self.shadows = ShadowTokens(self._exits, parts.target.layers, options.decay)
        self.exit = self._exits[len(self._exits) // 2]
        self.length = LONGEST
        self._quiet_rounds = 0  # since shadow tokens were looked at
        super().__init__(ViewDrafting(parts, parts.target.view(layers=range(self.exit + 1))))

    @property
    def taps(self) -> Sequence[int]:
        """The exits; none in most rounds while drafting does not pay."""
        return self._exits if self.length or self._quiet_rounds >= _LOOK_EVERY else ()

    def propose(self, tree: TokenTree, frontier: Sequence[int], width: int, context: Context) -> Proposal:
        """What the exit holds likely, for nodes above the length that pays."""
        nodes = [node for node in frontier if tree.depths[node] < self.length]
        return for_frontier(frontier, nodes, super().propose(tree, nodes, width, context) if nodes else ())

    def observe(self, round: Round) -> None:
        """Count the shadow tokens of the text that the round wrote, and choose exit and length by them."""
        super().observe(round)
        self._quiet_rounds += 1
        if set(self._exits) <= round.reading.taps.keys():
            self._quiet_rounds = 0
            self._look(round.reading, (ROOT, *round.verdict.path))
            self._choose()

    def _look(self, reading: Reading, path: Sequence[int]) -> None:
        rows = to_device(torch.tensor([reading.row(node) for node in path]), self._target.device)
        logits = self._target.head(torch.cat([reading.taps[layer][rows] for layer in self._exits]))
        decided = [best for (best,) in reading.best_after(path, 1)]
        self.shadows.add(logits.view(len(self._exits), len(path), -1), decided)

    def _choose(self) -> None:
        layer = self.shadows.best_exit()
        if self.shadows.best_length(layer)[0] > _BETTER * self.shadows.best_length(self.exit)[0]:
            self.exit = layer
            self._drafting.use(self._target.view(layers=range(layer + 1)))
        _, self.length = self.shadows.best_length(self.exit)
        self._drafting.sure = self.shadows.records[self.exit].threshold
