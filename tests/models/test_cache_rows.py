"""Which rows of the cache the nodes of a tree attend to."""

from specchat.core.tree import ROOT, Guess, TokenTree
from specchat.models.decoder.cache_rows import Rows


def test_a_node_below_two_thousand_read_one_pass_before_sees_all_of_them():
    tree, deepest = TokenTree(0, vocab_size=8), ROOT
    for _ in range(2000):
        deepest = tree.add(deepest, Guess(1, logprob=-1.0, proposer="test"))
    rows = Rows()
    rows.tree_read(rows.plan_tree(tree, range(deepest), ()))
    plan = rows.plan_tree(tree, [deepest], ())
    assert plan.mask.all(), "its path is everything"
    assert plan.positions == [2000]


def test_a_node_sees_its_ancestors_of_earlier_passes_and_no_sibling_of_theirs():
    tree = TokenTree(0, vocab_size=8)
    left, right = (tree.add(ROOT, Guess(token, logprob=-1.0, proposer="test")) for token in (1, 2))
    rows = Rows()
    rows.tree_read(rows.plan_tree(tree, [ROOT, left, right], ()))
    below = [tree.add(parent, Guess(3, logprob=-1.0, proposer="test")) for parent in (left, right)]
    mask = rows.plan_tree(tree, below, ()).mask
    assert mask.tolist() == [[True, True, False, True, False], [True, False, True, False, True]]


def test_a_first_pass_over_a_part_of_a_tree_numbers_its_rows_as_they_were_read():
    tree = TokenTree(0, vocab_size=8)
    left, right = (tree.add(ROOT, Guess(token, logprob=-1.0, proposer="test")) for token in (1, 2))
    rows = Rows()
    rows.tree_read(rows.plan_tree(tree, [ROOT, right], ()))
    below = tree.add(right, Guess(3, logprob=-1.0, proposer="test"))
    assert rows.plan_tree(tree, [left, below], ()).mask.tolist() == [
        [True, False, True, False],
        [True, True, False, True],
    ]
    assert rows.keep([right]) == [0, 1]
