"""What every `Model` promises: a tree pass says what plain passes over each path would say, and `keep` forgets."""

from __future__ import annotations

import torch
from contracts.kit import random_tree
from contracts.model_checks import CLOSE, PREFIX, check, check_next, deepest
from contracts.models import V, each_model, models_with

from specchat.core.tree import ROOT, Guess, TokenTree


@models_with("seed", range(3))
def test_a_tree_pass_says_what_a_plain_pass_over_each_path_says(subject, seed):
    tree = random_tree(V, 14, seed)
    subject.model.prefill(PREFIX)
    reading = subject.model.read(tree)
    assert reading.nodes == tuple(range(len(tree)))
    assert reading.alive == frozenset(range(len(tree)))
    assert reading.logits.shape == (len(tree), V)
    check(subject, reading, PREFIX, tree, range(len(tree)))


@each_model
def test_whom_a_model_names_likeliest_has_the_highest_logits(subject):
    tree = random_tree(V, 9, 2)
    subject.model.prefill(PREFIX)
    reading = subject.model.read(tree)
    if reading.said.likeliest is not None:
        best = reading.logits.gather(1, reading.said.likeliest.long())
        assert torch.equal(best, reading.logits.topk(best.shape[1]).values)
        assert reading.said.likeliest[:, 0].tolist() == reading.logits.argmax(dim=1).tolist()
    expected = reading.logits[[3, 1]].topk(3).indices.tolist()
    assert reading.best_after([3, 1], 3) == expected


@each_model
def test_the_first_token_of_all_can_be_the_root(subject):
    tree = random_tree(V, 6, 1)
    subject.model.prefill([])
    check(subject, subject.model.read(tree), [], tree, range(len(tree)))


@each_model
def test_level_by_level_says_the_same_as_the_whole_tree_at_once(subject):
    tree = random_tree(V, 14, 4)
    subject.model.prefill(PREFIX)
    whole = subject.model.read(tree)
    subject.model.keep(())
    stepwise = subject.fresh()
    stepwise.prefill(PREFIX)
    for depth in range(max(tree.depths) + 1):
        level = [node for node in range(len(tree)) if tree.depths[node] == depth]
        reading = stepwise.read(tree, level)
        assert reading.nodes == tuple(level)
        for node in level:
            torch.testing.assert_close(reading.after(node), whole.after(node), **CLOSE)


@each_model
def test_nodes_may_be_read_in_any_order_that_reads_parents_first(subject):
    tree = TokenTree(3, V)
    left = tree.add(ROOT, Guess(4))
    right = tree.add(ROOT, Guess(5))
    below_right = tree.add(right, Guess(6))
    below_left = tree.add(left, Guess(7))
    subject.model.prefill(PREFIX)
    for nodes in ([ROOT], [right, below_right], [left], [below_left]):
        check(subject, subject.model.read(tree, nodes), PREFIX, tree, nodes)
    subject.model.keep((left, below_left))
    check_next(subject, subject.model, [*PREFIX, 3, 4, 7, 9])


@each_model
def test_a_tree_may_grow_between_two_reads(subject):
    tree = TokenTree(3, V)
    subject.model.prefill(PREFIX)
    nodes, last = [ROOT], ROOT
    for token in (8, 13, 21):
        reading = subject.model.read(tree, nodes)
        check(subject, reading, PREFIX, tree, nodes)
        last = tree.add(last, Guess(token))
        nodes = [last]


@models_with("length", [0, 1, 3, 4])
def test_after_keep_it_is_as_if_the_rest_had_never_been_read(subject, length):
    tree = random_tree(V, 16, 3)
    path = deepest(tree)[:length]
    assert len(path) == length
    assert length < 3 or path != tuple(range(1, length + 1)), "rejected nodes lie between"
    subject.model.prefill(PREFIX)
    subject.model.read(tree)
    subject.model.keep(path)
    kept = [*PREFIX, tree.tokens[ROOT], *(tree.tokens[node] for node in path)]
    assert subject.model.cached([*kept, 0, 0]) == len(kept)
    again, untouched = random_tree(V, 8, 3), subject.fresh()
    untouched.prefill(kept)
    ours, theirs = subject.model.read(again), untouched.read(again)
    torch.testing.assert_close(ours.logits, theirs.logits, **CLOSE)
    check(subject, ours, kept, again, range(len(again)))


@each_model
def test_many_rounds_in_a_row_keep_the_cache_right(subject):
    text, model = list(PREFIX), subject.model
    for turn in range(5):
        model.prefill(text[:-1])
        tree = random_tree(V, 7, 10 + turn, root=text[-1])
        reading = model.read(tree)
        check(subject, reading, text[:-1], tree, range(len(tree)))
        path = deepest(tree)[: turn % 4]
        model.keep(path)
        text += [*(tree.tokens[node] for node in path), (5 * turn) % V]
        assert model.cached(text) == len(text) - 1
    check_next(subject, model, text)


@each_model
def test_a_path_may_end_in_nodes_that_were_never_read(subject):
    tree = TokenTree(3, V)
    a = tree.add(ROOT, Guess(4))
    b = tree.add(a, Guess(5))
    c = tree.add(b, Guess(6))
    subject.model.prefill(PREFIX)
    subject.model.read(tree, [ROOT])
    subject.model.read(tree, [a])
    subject.model.keep((a, b, c))
    assert subject.model.cached([*PREFIX, 3, 4, 5, 6]) == len(PREFIX) + 2
    check_next(subject, subject.model, [*PREFIX, 3, 4, 5, 6, 7])


@each_model
def test_a_round_of_which_nothing_was_read_keeps_nothing(subject):
    subject.model.prefill(PREFIX)
    subject.model.keep((1, 2))
    check_next(subject, subject.model, [*PREFIX, 3])


@each_model
def test_prefill_ends_a_round_that_was_not_kept(subject):
    subject.model.prefill(PREFIX)
    subject.model.read(random_tree(V, 9, 1))
    subject.model.prefill(PREFIX)
    tree = random_tree(V, 9, 2)
    check(subject, subject.model.read(tree), PREFIX, tree, range(len(tree)))
