"""The target's first layers draft for the whole target; which exit and how far is chosen round by round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from specchat.core.context import Context
from specchat.core.device_copy import to_device
from specchat.core.reading import Reading
from specchat.core.round import Round
from specchat.core.seams import Proposal
from specchat.core.tree import ROOT, TokenTree
from specchat.drafters.options import EarlyExitOptions
from specchat.drafters.parts import Parts
from specchat.drafters.point_guesses import for_frontier
from specchat.drafters.target_view import ViewDrafter

LONGEST = 16
"""Longer drafts than this are not considered."""

_BETTER = 1.02
"""Another exit is taken where it promises so many times the tokens per layer: changing copies the text's rows."""

_LOOK_EVERY = 8
"""While no draft pays, shadow tokens are looked at in every so many rounds: the head on all exits takes time."""


class EarlyExit(ViewDrafter):
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
        super().__init__(parts, parts.target.view(layers=range(self.exit + 1)))

    @property
    def taps(self) -> Sequence[int]:
        """The exits; none in most rounds while drafting does not pay."""
        return self._exits if self.length or self._quiet_rounds >= _LOOK_EVERY else ()

    def propose(self, tree: TokenTree, frontier: Sequence[int], width: int, context: Context) -> Proposal:
        """The exit's likeliest tokens, for nodes above the length that pays."""
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
            self.use(self._target.view(layers=range(layer + 1)))
        _, self.length = self.shadows.best_length(self.exit)
        self.sure = self.shadows.records[self.exit].threshold


@dataclass
class ExitRecord:
    """The record of one exit; newer tokens weigh more.

    Args:
        right, seen: weights of the tokens it would have guessed, and of all.
        sure_right, sure_wrong: sums of its own probabilities where it was right, and where it was wrong.
    """

    right: float = 0.0
    seen: float = 0.0
    sure_right: float = 0.0
    sure_wrong: float = 0.0

    @property
    def rate(self) -> float:
        return self.right / self.seen if self.seen else 0.0

    @property
    def threshold(self) -> float:
        """The probability halfway between its guesses that were right and those that were wrong; 0 where all were one
        of them."""
        wrong = self.seen - self.right
        if self.right < 0.5 or wrong < 0.5:
            return 0.0
        return (self.sure_right / self.right + self.sure_wrong / wrong) / 2

    def add(self, right: bool, probability: float, decay: float) -> None:
        """One more token; what was seen before weighs less by this factor."""
        hit = float(right)
        self.right = decay * self.right + hit
        self.seen = decay * self.seen + 1.0
        self.sure_right = decay * self.sure_right + hit * probability
        self.sure_wrong = decay * self.sure_wrong + (1.0 - hit) * probability


@dataclass
class ShadowTokens:
    """The tokens that every exit would have guessed where the whole network decided.

    Args:
        exits: layers after which a draft may end, ascending.
        layers: of the whole network.
        decay: what an older token weighs, for every newer one.
    """

    exits: Sequence[int]
    layers: int
    decay: float
    records: dict[int, ExitRecord] = field(init=False)

    def __post_init__(self) -> None:
        self.records = {layer: ExitRecord() for layer in self.exits}

    @property
    def seen(self) -> bool:
        return any(record.seen for record in self.records.values())

    def add(self, logits: Tensor, decided: Sequence[int]) -> None:
        """Count the guesses after some tokens of the text.

        Args:
            logits: (exits, n, V) what every exit holds likely after each of n tokens.
            decided: (n,) what the whole network holds likeliest there.
        """
        logits = logits.float()
        best, guessed = logits.max(dim=-1)
        probabilities = (best - torch.logsumexp(logits, dim=-1)).exp().tolist()
        for record, tokens, sure in zip(self.records.values(), guessed.tolist(), probabilities, strict=True):
            for token, whole, probability in zip(tokens, decided, sure, strict=True):
                record.add(token == whole, probability, self.decay)

    def best_length(self, layer: int) -> tuple[float, int]:
        """(tokens per layer, length) of the best draft at one exit, of equals the longest; 0 where none pays.

        Tokens per layer are those expected from a round, over the layers that it computes.
        """
        rate, reach, expected = self.records[layer].rate, 1.0, 1.0
        best, best_length = 1.0 / self.layers, 0
        for length in range(1, LONGEST + 1):
            reach *= rate
            expected += reach
            worth = expected / (length * (layer + 1) + self.layers)
            if worth >= best:
                best, best_length = worth, length
        return best, best_length

    def best_exit(self) -> int:
        """The exit with the most tokens per layer, of equals the first."""
        return max(self.exits, key=lambda layer: self.best_length(layer)[0])


def exits_of(layers: int, count: int) -> tuple[int, ...]:
    """At most so many layers at equal distances, the last one left out unless it is the only one."""
    possible = max(1, layers - 1)
    count = min(count, possible)
    return tuple((2 * at + 1) * possible // (2 * count) for at in range(count))
