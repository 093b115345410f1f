"""Every node of a judged tree has the reason that its place gives it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from specchat.core.round import Reason, Verdict
from specchat.core.tree import ROOT, Guess, TokenTree


@st.composite
def judged(draw):
    """A tree, a path from its root down, and dropped nodes elsewhere, each with all that is below it."""
    tree = TokenTree(0, 100)
    for token in range(1, draw(st.integers(1, 12))):
        tree.add(draw(st.integers(0, len(tree) - 1)), Guess(token))
    path, node = [], ROOT
    while (children := tree.children(node)) and draw(st.booleans()):
        node = draw(st.sampled_from(list(children)))
        path.append(node)
    dead: set[int] = set()
    for other in range(1, len(tree)):
        if other not in path and (tree.parents[other] in dead or draw(st.integers(0, 3)) == 0):
            dead.add(other)
    return tree.freeze(), path, dead


@given(judged())
def test_a_node_is_rejected_only_where_its_parent_stands(case):
    tree, path, dead = case
    standing = {ROOT, *path}
    for node, reason in enumerate(Verdict(tuple(path), None, tree, dead).reasons):
        if node in standing:
            assert reason is Reason.ACCEPTED
        elif node in dead:
            assert reason is Reason.PRUNED
        elif tree.parents[node] in standing:
            assert reason is Reason.REJECTED
        else:
            assert reason is Reason.UNREACHED
