"""What the acceptance rule decided about a tree, with a reason for every node."""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum
from functools import cached_property

from specchat.core.record import record
from specchat.core.tree import ROOT, TokenTree


class Reason(Enum):
    """Why a node stands or does not."""

    ACCEPTED = "accepted"
    REJECTED = "rejected"  # its parent stands, and the target's token there was another
    UNREACHED = "unreached"  # its parent does not stand, so it was not judged
    PRUNED = "pruned"  # dropped in the middle of the target's pass
    CUT = "cut"  # accepted, but the reply ended before it


@record
class Verdict:
    """The accepted path and the token that ends it.

    Args:
        path: (A,) accepted nodes, the root excluded, ascending.
        bonus: the target's own token after the path; None where the reply ends on an accepted node.
        tree: what was judged, N nodes.
        dead: the nodes dropped during the pass.
        sources: (A,) for every accepted node, where in the text the token stands that the rule copied, if it copied
            one; empty under rules that copy nothing.
        beyond: nodes that were accepted, but the reply ended before them.
    """

    path: tuple[int, ...]
    bonus: int | None
    tree: TokenTree
    dead: Collection[int] = ()
    sources: tuple[int | None, ...] = ()
    beyond: tuple[int, ...] = ()

    @property
    def emitted(self) -> tuple[int, ...]:
        """The tokens this round adds to the text: the path's, then the bonus."""
        tokens = [self.tree.tokens[node] for node in self.path]
        return tuple(tokens) if self.bonus is None else (*tokens, self.bonus)

    @cached_property
    def reasons(self) -> tuple[Reason, ...]:
        """(N,) one per node; the root's is ACCEPTED. Worked out only where it is asked for."""
        reasons = [Reason.UNREACHED] * len(self.tree)
        standing = (ROOT, *self.path, *self.beyond)
        for node in standing:
            for child in self.tree.children(node):
                reasons[child] = Reason.REJECTED
        for node in self.dead:
            reasons[node] = Reason.PRUNED
        for node in standing:
            reasons[node] = Reason.ACCEPTED
        for node in self.beyond:
            reasons[node] = Reason.CUT
        return tuple(reasons)

    def cut(self, count: int) -> Verdict:
        """The same verdict with only the first `count` emitted tokens: text, cache and counts end together."""
        if count > len(self.path):
            return self
        kept, beyond = self.path[:count], (*self.path[count:], *self.beyond)
        return Verdict(kept, None, self.tree, self.dead, self.sources[:count], beyond)
