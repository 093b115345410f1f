"""BiLD's rollback: guesses stand until the target finds one too unlikely."""

from __future__ import annotations

import math

from specchat.acceptance.options import RollbackOptions
from specchat.acceptance.walk import own_token, soft_law, walk
from specchat.core.context import Context
from specchat.core.reading import Reading
from specchat.core.round import Verdict
from specchat.core.seams import AcceptanceRule
from specchat.core.tree import TokenTree


class Rollback(AcceptanceRule):
    """A guess x stands if −log p(x) is at most `distance`; the first that does not is replaced by the target's token.

    p is the target's law as it samples, at temperature 0 that of temperature 1; −log p(x) is the cross-entropy between
    the guess and p. With distance 0 every guess is rolled back and the text is the target's own; without bound none is,
    and the target speaks only where the draft stops, as with the policy `confidence`. Of siblings the first that is
    near enough stands.

    Reference: Kim et al., Speculative Decoding with Big Little Decoder, arXiv:2302.07863. Differs: for trees too, where
    it is published for one branch.
    """

    def __init__(self, options: RollbackOptions) -> None:
        self._distance = options.distance

    def judge(self, tree: TokenTree, reading: Reading, context: Context) -> Verdict:
        """Walk down while a child is near enough, or is the target's own token."""
        return walk(tree, reading, lambda node: self._token_after(tree, node, reading, context))

    def _token_after(self, tree: TokenTree, node: int, reading: Reading, context: Context) -> int:
        tokens = [tree.tokens[child] for child in tree.children(node)]
        if tokens:
            for token, chance in zip(tokens, soft_law(tree, node, reading, context)[tokens].tolist(), strict=True):
                if (-math.log(chance) if chance > 0.0 else math.inf) <= self._distance:
                    return token
        return own_token(tree, node, reading, context)
