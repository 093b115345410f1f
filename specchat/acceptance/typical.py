"""Typical acceptance: a guess stands if the target holds it likely enough, given how undecided the target is."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from specchat.acceptance.options import TypicalOptions
from specchat.acceptance.walk import own_token, walk
from specchat.core.context import Context
from specchat.core.reading import Reading
from specchat.core.round import Verdict
from specchat.core.seams import AcceptanceRule
from specchat.core.tree import ROOT, TokenTree


class Typical(AcceptanceRule):
    """A child stands if p(x) > min(epsilon, delta · exp(−H(p))); of the paths that stand the longest is taken.

    H is the entropy of the target's law p after the parent: the less decided the target, the less is asked of a guess.
    So likely tokens are accepted more often than the target would draw them: the text is not distributed as the
    target's. At temperature 0 it is the target's own. After the path the target draws a token of its own; if that is a
    child, the walk goes on.

    Reference: Cai et al., Medusa, arXiv:2401.10774; the defaults are its epsilon and delta, 0.09 and 0.3. With these
    epsilon decides where the entropy is below ln(0.3 / 0.09) = 1.2 nats, delta above. Differs: the first guess of a
    round is tested like all others, where Medusa always takes it; it is the previous round's bonus there.
    """

    def __init__(self, options: TypicalOptions) -> None:
        self._epsilon, self._delta = options.epsilon, options.delta

    def judge(self, tree: TokenTree, reading: Reading, context: Context) -> Verdict:
        """Walk down the longest typical path, then wherever the target's own tokens lead."""
        following = self._longest(tree, reading, context)

        def token_after(node: int) -> int:
            child = following.get(node)
            return own_token(tree, node, reading, context) if child is None else tree.tokens[child]

        return walk(tree, reading, token_after)

    def _longest(self, tree: TokenTree, reading: Reading, context: Context) -> dict[int, int]:
        """Node → its typical child with the longest typical path below it, of equals the likelier one."""
        reached, chances = [ROOT], {ROOT: 1.0}
        for node in reached:  # grows while it is walked
            children = [child for child in tree.children(node) if child in reading.alive]
            if not children:
                continue
            p = context.law_after(tree, node, reading.after(node)).dense(context.vocab_size)
            threshold = self.threshold(p)
            for child, chance in zip(children, p[[tree.tokens[child] for child in children]].tolist(), strict=True):
                if chance > threshold:
                    reached.append(child)
                    chances[child] = chance
        below: dict[int, int] = dict.fromkeys(reached, 0)
        following: dict[int, int] = {}
        for node in reversed(reached[1:]):
            parent, length = tree.parents[node], 1 + below[node]
            rival = following.get(parent)
            if rival is None or (length, chances[node]) > (below[parent], chances[rival]):
                below[parent], following[parent] = length, node
        return following

    def threshold(self, p: Tensor) -> float:
        """The threshold that a token's probability must exceed, for (V,) probabilities p."""
        entropy = float(torch.special.entr(p).sum())
        return min(self._epsilon, self._delta * math.exp(-entropy))
