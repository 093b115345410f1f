"""The suffix tree counts what a brute-force search counts, before and after forgetting."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from indexes.operations import operations

from specchat.indexes.suffix_tree import SuffixTree

Counts = Counter[tuple[int, ...]]


def brute_force(texts, depth) -> Counts:
    """How often every run of up to `depth` tokens occurs."""
    counts: Counts = Counter()
    for text in texts:
        for start in range(len(text)):
            for end in range(start + 1, min(len(text), start + depth) + 1):
                counts[tuple(text[start:end])] += 1
    return counts


def all_counts(tree: SuffixTree) -> Counts:
    """Every run in the tree with its count, found by walking down."""
    counts: Counts = Counter()
    stack = [((), tree.find([]))]
    while stack:
        run, place = stack.pop()
        following = place.next()
        assert len({token for token, _ in following}) == len(following)
        for token, longer in following:
            counts[(*run, token)] = longer.count
            stack.append(((*run, token), longer))
    return counts


def nodes(tree: SuffixTree) -> list:
    found, stack = [], [tree._root]
    while stack:
        node = stack.pop()
        found.append(node)
        stack.extend(node.children.values())
    return found


def check_inside(tree: SuffixTree, texts) -> None:
    """Labels lie where they should, counts add up, and nothing refers to a text that is gone."""
    for node in nodes(tree):
        for child in node.children.values():
            assert child.parent is node
            assert child.count > 0
        if node is not tree._root:
            assert node.count == node.ends + sum(child.count for child in node.children.values())
            assert len(node.text) <= tree.depth or any(node.text is text for text in (tree._text, *tree._finished))


def tree_of(texts, depth) -> SuffixTree:
    tree = SuffixTree(depth)
    for text in texts:
        tree.extend(text)
        tree.end_text()
    return tree


TEXTS = st.lists(st.lists(st.integers(0, 2), max_size=25), max_size=4)


@given(TEXTS, st.integers(2, 9))
def test_counts_are_those_of_a_brute_force_search(texts, depth):
    tree = tree_of(texts, depth)
    assert all_counts(tree) == brute_force(texts, depth)
    assert len(tree) == sum(map(len, texts))
    check_inside(tree, texts)


@given(st.lists(st.integers(0, 1), max_size=40), st.integers(2, 6))
def test_counts_are_right_after_every_single_token(text, depth):
    tree = SuffixTree(depth)
    for end, token in enumerate(text):
        tree.extend([token])
        assert all_counts(tree) == brute_force([text[: end + 1]], depth)


@given(TEXTS, st.integers(2, 9), st.data())
def test_forgetting_the_oldest_text_restores_the_counts(texts, depth, data):
    tree = tree_of(texts, depth)
    kept = [text for text in texts if text]
    for _ in range(data.draw(st.integers(0, len(kept)))):
        kept = kept[1:]
        tree.forget_oldest()
        assert all_counts(tree) == brute_force(kept, depth)
        check_inside(tree, kept)
    assert tree.finished == len(kept)
    more = data.draw(st.lists(st.integers(0, 2), max_size=25))
    tree.extend(more)
    assert all_counts(tree) == brute_force([*kept, more], depth)


@given(TEXTS, st.lists(st.integers(0, 3), min_size=1, max_size=12), st.integers(2, 9))
def test_a_run_is_found_exactly_where_it_occurs(texts, run, depth):
    tree = tree_of(texts, depth)
    assert tree.count(run) == brute_force(texts, depth)[tuple(run)]


@given(TEXTS, st.lists(st.integers(0, 1), max_size=30), st.integers(2, 9))
def test_a_growing_text_counts_beside_complete_ones(texts, growing, depth):
    tree = tree_of(texts, depth)
    tree.extend(growing)
    counts = brute_force([*texts, growing], depth)
    assert all_counts(tree) == counts
    for run in counts:
        if len(run) < depth:
            going_on = sum(n for longer, n in counts.items() if len(longer) == len(run) + 1 and longer[:-1] == run)
            assert tree.find(run).followed == going_on


@given(TEXTS, st.integers(2, 9))
def test_followed_counts_the_occurrences_that_go_on(texts, depth):
    tree, counts = tree_of(texts, depth), brute_force(texts, depth)
    for run in counts:
        if len(run) < depth:
            going_on = sum(n for longer, n in counts.items() if len(longer) == len(run) + 1 and longer[:-1] == run)
            assert tree.find(run).followed == going_on


@given(TEXTS, st.integers(2, 9), st.integers(1, 4))
def test_next_names_what_follows_often_enough(texts, depth, least):
    tree, counts = tree_of(texts, depth), brute_force(texts, depth)
    for run in ((), *counts):
        following = {token: place.count for token, place in tree.find(run).next(least)}
        assert following == {longer[-1]: n for longer, n in counts.items() if longer[:-1] == run and n >= least}


@given(TEXTS, st.lists(st.integers(0, 2), max_size=15), st.integers(2, 9))
def test_matches_are_all_endings_that_occurred_and_went_on(texts, text, depth):
    tree, counts = tree_of(texts, depth), brute_force(texts, depth)
    sizes = [size for size, _ in tree.matches(text, longest=20)]
    expected = [
        m
        for m in range(1, min(len(text), depth - 1) + 1)
        if any((*text[len(text) - m :], token) in counts for token in range(3))
    ]
    assert sizes == expected


def test_a_text_that_repeats_itself_takes_few_nodes():
    """A trie of this depth would have a node for every one of the repeated runs: tens of thousands."""
    generator = random.Random(0)
    passage = [generator.randrange(500) for _ in range(600)]
    tree = SuffixTree(64)
    tree.extend(passage * 4)
    assert len(brute_force([passage * 4], 64)) > 30_000
    assert len(nodes(tree)) < 2 * len(tree)
    assert tree.count(passage[100:160]) == 4


def test_clearing_forgets_everything():
    tree = tree_of([[1, 2, 3]], 4)
    tree.clear()
    assert len(tree) == 0
    assert tree.finished == 0
    assert tree.count([1]) == 0


def test_there_is_nothing_to_forget_in_an_empty_tree():
    with pytest.raises(IndexError):
        SuffixTree(4).forget_oldest()


@pytest.mark.parametrize("period", [1, 3, 50])
def test_a_token_of_a_repetitive_text_costs_no_more_than_one_of_a_text_without_repetition(period):
    """However many runs end the text and occurred before: only the longest is looked at."""

    def work(text):
        return operations(SuffixTree(64).extend, text)

    assert work([place % period for place in range(2000)]) < 1.5 * work(range(2000))


def test_a_growing_text_may_go_on_after_its_runs_were_asked_for():
    tree, text = SuffixTree(5), [1, 2, 1, 2, 1, 1, 2, 2, 1, 2, 1, 2]
    for end, token in enumerate(text, 1):
        tree.extend([token])
        counts = brute_force([text[:end]], 5)
        for run in counts:
            going_on = sum(n for longer, n in counts.items() if len(longer) == len(run) + 1 and longer[:-1] == run)
            assert len(run) == 5 or tree.find(run).followed == going_on


def test_texts_are_not_forgotten_while_another_grows():
    tree = tree_of([[1, 2, 3]], 4)
    tree.extend([1])
    with pytest.raises(AssertionError, match="between two texts"):
        tree.forget_oldest()
