"""Multi-step speculative sampling: independent draws from the draft, one after another against the target's law."""

from __future__ import annotations

from specchat.acceptance.recursion import token_after
from specchat.acceptance.walk import walk
from specchat.core.context import Context
from specchat.core.reading import Reading
from specchat.core.round import Verdict
from specchat.core.seams import AcceptanceRule
from specchat.core.tree import DrawKind, TokenTree


class MultiStep(AcceptanceRule):
    """Try the children of a node in turn; each was drawn from q, independently of the others.

    Two independent draws of the same token are two tries. With one draw per node this is speculative sampling.

    Reference: Miao et al., SpecInfer, arXiv:2305.09781 (for one draw Leviathan et al., arXiv:2211.17192). Differs:
    draws are tried in the order they were made instead of in a random one, which for independent draws is the same.
    """

    lossless = True
    wanted = DrawKind.IID

    def judge(self, tree: TokenTree, reading: Reading, context: Context) -> Verdict:
        return walk(tree, reading, lambda node: token_after(tree, node, reading, context))
