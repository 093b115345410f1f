"""Block verification: a chain of draws is accepted or refused by all of its tokens together."""

from __future__ import annotations

from specchat.acceptance.branches import BranchRule
from specchat.core.tree import DrawKind


class Block(BranchRule):
    """The first draws below each other are a block; it stands as far as the last node whose coin says yes.

    The chance of the whole block is the product of its ratios p / q, cut at 1 after each. On chains no exact rule of
    this kind accepts more, and `multi_step`, which judges token by token, never does. In a tree the further draws of
    the node at which a block ends are tried one by one against what the block left there, as `multi_step` does; the
    first that is accepted begins a block of its own.

    Reference: Sun et al., Block Verification Accelerates Speculative Decoding, arXiv:2403.10444. Differs: published for
    chains of one length; here they may end anywhere, also because of their tokens, and have siblings.
    """

    wanted = DrawKind.IID
    branches = 1
