"""Traversal verification: a tree is judged from its leaves upwards, each branch by all of its tokens together."""

from __future__ import annotations

from specchat.acceptance.branches import BranchRule
from specchat.core.tree import DrawKind


class Traversal(BranchRule):
    """Try the branches of a node in turn, each from its leaves up; where all are refused, the node itself.

    With one draw per node it is `block`. In the mean over trees of one shape it accepted at least as much as
    `recursive` wherever both were computed; of a single tree it may accept less.

    Reference: Weng et al., Traversal Verification for Speculative Tree Decoding, arXiv:2505.12398. Differs: independent
    draws are judged too, in the same way; a node that was dropped in the pass is a leaf, and its token the bonus.
    """

    wanted = DrawKind.WOR
