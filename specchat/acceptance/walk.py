"""Walking down a judged tree: the one loop that all rules share which decide token by token."""

from __future__ import annotations

from collections.abc import Callable

from specchat.core.reading import Reading
from specchat.core.round import Verdict
from specchat.core.tree import ROOT, TokenTree


def walk(tree: TokenTree, reading: Reading, token_after: Callable[[int], int]) -> Verdict:
    """Walk down from the root for as long as the token that follows is a living child.

    Each token is decided before anyone asks whether its node is alive. So pruning in the middle of the pass can
    end the walk, but it can never change a token: the token of a dead child is emitted as the bonus, and the next
    round begins behind it. Dropping the draws of dead children instead would condition those that survive on
    having survived, and bias the text.

    Args:
        token_after: node → the token that follows it; asked once for every visited node, downwards.
    """
    path: list[int] = []
    node = ROOT
    while True:
        token = token_after(node)
        child = tree.child(node, token)
        if child is None or child not in reading.alive:
            return Verdict(tuple(path), token, tree, reading.pruned)
        path.append(child)
        node = child
