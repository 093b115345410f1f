"""Recursive rejection sampling: draws without replacement, so no two children of a node are wasted on one token."""

from __future__ import annotations

from specchat.acceptance.recursion import token_after
from specchat.acceptance.walk import walk
from specchat.core.context import Context
from specchat.core.reading import Reading
from specchat.core.round import Verdict
from specchat.core.seams import AcceptanceRule
from specchat.core.tree import DrawKind, TokenTree


class Recursive(AcceptanceRule):
    """Try the children of a node in turn; each was drawn from q without the ones before it.

    What earlier children cover is taken from both laws, so as many children as q has tokens are sure to cover p.

    Reference: Jeon et al., Recursive Speculative Decoding, arXiv:2402.14160. Differs: where children come from is
    the tree policy's business (`expansion` is its constant tree; its stochastic beam search is another policy).
    """

    lossless = True
    wanted = DrawKind.WOR

    def judge(self, tree: TokenTree, reading: Reading, context: Context) -> Verdict:
        return walk(tree, reading, lambda node: token_after(tree, node, reading, context))
