"""What the acceptance rule decided about a tree, with a reason for every node."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum

from specchat.core.tree import ROOT, TokenTree


class Reason(Enum):
    """Why a node stands or does not."""

    ACCEPTED = "accepted"
    REJECTED = "rejected"  # its parent stands, and the target's token there was another
    UNREACHED = "unreached"  # its parent does not stand, so it was not judged
    PRUNED = "pruned"  # dropped in the middle of the target's pass
    CUT = "cut"  # accepted, but the reply ended before it


@dataclass(frozen=True)
class Verdict:
    """The accepted path and the token that ends it.

    Args:
        path: (A,) accepted nodes, the root excluded, ascending.
        bonus: the target's own token after the path; None where the reply ends on an accepted node.
        reasons: (N,) one per node; the root's is ACCEPTED.
        sources: (A,) for every accepted node, where in the text the token stands that the rule copied, if it copied
            one; empty under rules that copy nothing.
    """

    path: tuple[int, ...]
    bonus: int | None
    reasons: tuple[Reason, ...]
    sources: tuple[int | None, ...] = ()

    def emitted(self, tree: TokenTree) -> list[int]:
        """The tokens this round adds to the text: the path's, then the bonus."""
        tokens = [tree.tokens[node] for node in self.path]
        return tokens if self.bonus is None else [*tokens, self.bonus]

    def cut(self, count: int) -> Verdict:
        """The same verdict with only the first `count` emitted tokens: text, cache and counts end together."""
        if count > len(self.path):
            return self
        dropped = set(self.path[count:])
        reasons = tuple(Reason.CUT if node in dropped else reason for node, reason in enumerate(self.reasons))
        return Verdict(self.path[:count], None, reasons, self.sources[:count])


def explain(tree: TokenTree, path: Sequence[int], dead: Collection[int] = ()) -> tuple[Reason, ...]:
    """(N,) a reason for every node, given the accepted path and the nodes dropped during the pass."""
    reasons = [Reason.UNREACHED] * len(tree)
    standing = (ROOT, *path)
    for node in standing:
        for child in tree.children(node):
            reasons[child] = Reason.REJECTED
    for node in dead:
        reasons[node] = Reason.PRUNED
    for node in standing:
        reasons[node] = Reason.ACCEPTED
    return tuple(reasons)
