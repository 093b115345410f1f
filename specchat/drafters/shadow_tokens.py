"""How well each early exit of a network would have guessed, computed from the states of passes that were run anyway."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

LONGEST = 16
"""Longer drafts than this are not considered."""


@dataclass
class ExitRecord:
    """What is known of one exit; newer tokens weigh more.

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
        """How often it is right."""
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
        """Whether anything is known."""
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
