"""Stops where the draft itself is unsure: at any node, and along any path, by a threshold that adjusts itself."""

from __future__ import annotations

import math
from collections.abc import Sequence

from specchat.core.budget import Budget
from specchat.core.compiled_guessing import GrowthPlan
from specchat.core.context import Context
from specchat.core.round import Round
from specchat.core.seams import Drafter, TreePolicy
from specchat.core.tree import ROOT, DrawKind, Guess, TokenTree
from specchat.trees.growth import Growth
from specchat.trees.options import ConfidenceOptions

_LEAST, _MOST = 0.001, 0.9
"""Bounds of the path threshold: below the first nothing is left out, above the second nothing would be drafted."""


class Confidence(TreePolicy):
    """Two thresholds on the draft's own probabilities, level by level.

    A node whose likeliest next token is less likely than `fallback` gets no children: there the target takes over. A
    guess whose path is less likely than alpha gets no place, so the target verifies once no path is sure enough. With
    `adapt`, alpha follows the rounds: halved when a whole path down to the tree's last level stood, divided by 0.5^w
    when the share w of its levels did not.

    Both look at a draft's law, never at the token drawn from it, so draws keep their distribution.

    Reference: Kim et al., Speculative Decoding with Big Little Decoder, arXiv:2302.07863, for the fallback; after Xu et
    al., LLMCad, arXiv:2309.04255, for the path threshold; its drafting while the target reads is the loop `overlap`.
    Differs: a round in which nothing was sure enough halves alpha too, or it could never fall again.
    """

    keeps_draws = True

    def __init__(self, options: ConfidenceOptions) -> None:
        self._options = options
        self.alpha = options.alpha

    def observe(self, round: Round) -> None:
        """Lower alpha after a round in which everything stood, raise it after one in which little did."""
        if not self._options.adapt or round.budget.nodes == 0:
            return
        levels = max(round.tree.depths)
        wrong = 1.0 - round.accepted / levels if levels else 0.0
        factor = 0.5**-wrong if wrong > 0.0 else 0.5
        self.alpha = min(_MOST, max(_LEAST, self.alpha * factor))

    def grow(self, drafter: Drafter, context: Context, budget: Budget) -> TokenTree:
        """The frozen tree of what the draft is sure of; the root alone where it is unsure at once."""
        plan = GrowthPlan(budget, floor=self.alpha, levels=True, fallback=self._options.fallback)
        if (tree := drafter.grow_at_once(context, plan)) is not None:
            return tree
        growth, width = Growth(context, budget, floor=self.alpha), budget.width
        level = [ROOT] if width > 0 else []
        while level := growth.that_may_have_children(level):
            proposal = growth.ask(drafter, level, width)
            level = [
                child
                for node, guesses in zip(level, proposal, strict=True)
                if sureness(guesses) >= self._options.fallback
                for child in growth.consider(node, guesses[:width]).values()
            ]
        return growth.best_tree()


def sureness(guesses: Sequence[Guess]) -> float:
    """How likely the drafter holds the likeliest next token; 0.5 where it does not say.

    Of draws that is the largest probability of the law they come from, whatever was drawn.
    """
    found = 0.0
    for guess in guesses:
        if guess.kind is not DrawKind.POINT and guess.q is not None:
            found = max(found, float(guess.q.max()))
        elif guess.kind is DrawKind.POINT and guess.logprob is not None:
            found = max(found, math.exp(guess.logprob))
        else:
            found = max(found, 0.5)
    return found
