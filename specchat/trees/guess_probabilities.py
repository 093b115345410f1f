"""How likely guesses are to stand, as far as is known before the target's pass."""

from __future__ import annotations

import math
from collections.abc import Sequence

from specchat.core.tree import DrawKind, Guess


def acceptance_probabilities(guesses: Sequence[Guess]) -> list[float]:
    """For each guess at one node, how likely it is to stand when its parent does.

    A point counts with the probability its drafter gives it; a drafter that gives none is taken to be right half
    of the time with its first guess, a quarter with its second, and so on. A sampled draw counts with the share
    that the draws before it leave: that is known before it is drawn, so nothing decided by it looks at its token.
    """
    found: list[float] = []
    left = 1.0
    for rank, guess in enumerate(guesses):
        if guess.kind is DrawKind.POINT:
            found.append(point_probability(guess, rank))
        else:
            found.append(left)
            left *= 1.0 - probability_once_drawn(guesses, rank)
    return found


def probability_once_drawn(guesses: Sequence[Guess], rank: int) -> float:
    """How likely a guess is to stand when it gets its turn, its token known: for what is to grow below it.

    For a draw without replacement that is its probability among the tokens its proposer had not drawn before.
    """
    guess = guesses[rank]
    probability = point_probability(guess, rank)
    if guess.kind is not DrawKind.WOR:
        return probability
    earlier = [i for i in range(rank) if guesses[i].kind is DrawKind.WOR and guesses[i].proposer == guess.proposer]
    left = 1.0 - sum(point_probability(guesses[i], i) for i in earlier)
    return min(1.0, probability / left) if left > probability else 1.0


def point_probability(guess: Guess, rank: int) -> float:
    """The probability that its drafter gives a guess; see `acceptance_probabilities` for one that gives none."""
    if guess.logprob is not None:
        return min(1.0, math.exp(guess.logprob))
    return 0.5 ** (rank + 1)
