"""AMBEDKAR's re-ranking: of the likely guesses the one that depends least on who the prompt is about."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from torch import Tensor

from specchat.acceptance.counterfactual import Counterfactual
from specchat.acceptance.options import FairOptions
from specchat.acceptance.target_law import own_token, soft_law
from specchat.acceptance.walk import walk
from specchat.core.context import Context
from specchat.core.reading import Reading
from specchat.core.request import always_logits
from specchat.core.round import Verdict
from specchat.core.seams import Weights
from specchat.core.tree import DrawKind, TokenTree
from specchat.core.vocabulary import TokenTable


class Fair:
    """Of a node's children and the target's own token, the one whose probability changes least under another prompt.

    The other prompt is the same text with the identity terms of `swap` exchanged. The target reads every tree twice,
    once after each prompt. Of the tokens with at least `share` of the likeliest one's probability that one is taken
    whose divergence between both laws is least, of equals the likelier. Where the prompts are the same, that is the
    likeliest. It costs a second pass in every round: it is meant for another text, not for a faster one.

    Reference: AMBEDKAR, arXiv:2509.02133. Differs: the target itself is the verifier, without a constitution in its
    prompt, and a candidate is one token; its divergence is Jensen and Shannon's between p(x) and p'(x), each against
    all else.
    """

    lossless: Final = False
    taps: Sequence[int] = ()
    needs = staticmethod(always_logits)
    wants_q: Final = False
    wanted: Final = DrawKind.POINT
    wants_target: Final = True

    def __init__(
        self, options: FairOptions, target: Weights | None = None, vocabulary: TokenTable | None = None
    ) -> None:
        """The rule for one target.

        Args:
            target: its weights, read through a twin. Without a target or a vocabulary no term is exchanged.
        """
        self._share = options.share
        self._other = (
            Counterfactual(target.with_new_cache(), vocabulary, options.pairs())
            if target is not None and vocabulary is not None
            else None
        )

    def judge(self, tree: TokenTree, reading: Reading, context: Context) -> Verdict:
        """Walk down while the token that changes least is a living child."""
        other = self._other.read(tree, context) if self._other is not None and tree.drafted else None

        def token_after(node: int) -> int:
            own = own_token(tree, node, reading, context)
            if not tree.children(node):
                return own
            tokens = list(dict.fromkeys([*(tree.tokens[child] for child in tree.children(node)), own]))
            p = soft_law(tree, node, reading, context)
            changed = p if other is None else soft_law(tree, node, other, context)
            return least_changed(tokens, p, changed, self._share)

        return walk(tree, reading, token_after)


def least_changed(tokens: Sequence[int], p: Tensor, changed: Tensor, share: float) -> int:
    """Of the tokens that are likely enough the one of least divergence, of equals the likelier.

    Args:
        p: (V,) probabilities after the prompt.
        changed: (V,) probabilities after the other prompt.
        share: of the likeliest token's probability, what a token must have to be considered.
    """
    chances = p[list(tokens)].tolist()
    least = share * max(chances)
    found = [
        (divergence(chance, other), -chance, place)
        for place, (chance, other) in enumerate(zip(chances, changed[list(tokens)].tolist(), strict=True))
        if chance >= least
    ]
    return tokens[min(found)[2]]


def divergence(p: float, q: float) -> float:
    """Jensen and Shannon's divergence, in nats, between two laws of whether a token follows."""
    total = 0.0
    for a, b in ((p, q), (1.0 - p, 1.0 - q)):
        middle = 0.5 * (a + b)
        total += sum(0.5 * x * math.log(x / middle) for x in (a, b) if x > 0.0)
    return max(0.0, total)
