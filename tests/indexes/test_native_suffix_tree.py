"""The suffix tree in C is the one in Python: the same counts and drafts, whatever was read, ended and forgotten."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specchat.compiled.build import NativeUnavailable
from specchat.drafters import suffix as suffix_trees
from specchat.indexes.native_suffix_tree import NativeDrafter, NativeSuffixTree, suffix_library
from specchat.indexes.suffix_draft import DraftLimits, draft
from specchat.indexes.suffix_tree import SuffixTree

try:
    suffix_library()
except NativeUnavailable as error:
    pytest.skip(str(error), allow_module_level=True)

RUNS = st.lists(st.integers(0, 3), max_size=12)
ACTIONS = st.lists(
    st.one_of(RUNS, st.sampled_from(["end", "forget", "clear"])),
    max_size=25,
)


class Both:
    """A tree of each kind, to which the same is done."""

    def __init__(self, depth):
        self.python, self.c = SuffixTree(depth), NativeSuffixTree(depth)

    def do(self, action):
        for tree in (self.python, self.c):
            if action == "end":
                tree.end_text()
            elif action == "clear":
                tree.clear()
            elif action != "forget":
                tree.extend(action)
            elif tree.finished:
                tree.end_text()
                tree.forget_oldest()

    def check(self, runs):
        assert (len(self.c), self.c.finished) == (len(self.python), self.python.finished)
        for run in runs:
            assert self.c.count(run) == self.python.count(run)
            assert self.c.begins(run) == self.python.begins(run)


def limits_of(depth, factor, offset, probability):
    return DraftLimits(tuple(min(int(factor * m) + offset, depth - m) for m in range(depth + 1)), probability)


@given(st.integers(2, 9), ACTIONS, st.lists(RUNS, max_size=8))
def test_it_counts_what_the_tree_in_python_counts(depth, actions, runs):
    trees = Both(depth)
    for action in actions:
        trees.do(action)
        ends = [trees.python.text[-size:] for size in range(1, depth + 1)]
        trees.check([*runs, *ends, list(trees.python.text)])


@given(
    st.integers(2, 12),
    ACTIONS,
    ACTIONS,
    RUNS,
    st.tuples(st.sampled_from([0.0, 0.5, 1.0, 3.0]), st.integers(0, 8), st.sampled_from([0.001, 0.1, 0.3, 1.0])),
)
def test_it_drafts_what_the_tree_in_python_drafts(depth, first, second, path, how):
    own, past = Both(depth), Both(depth)
    for trees, actions in ((own, first), (past, second)):
        for action in actions:
            trees.do(action)
    limits = limits_of(depth, *how)
    drafter = NativeDrafter((own.c, past.c), limits)
    for more in ([], path, path[:1]):
        assert drafter.draft(more) == draft((own.python, past.python), more, limits)


@pytest.mark.parametrize("seed", range(3))
def test_they_agree_about_long_texts_that_repeat_themselves_and_are_forgotten(seed):
    generator = random.Random(seed)
    passages = [[generator.randrange(300) for _ in range(40)] for _ in range(6)]
    own, past, limits = Both(64), Both(64), limits_of(64, 1.0, 1, 0.1)
    drafter = NativeDrafter((own.c, past.c), limits)
    for _ in range(4):
        for _ in range(8):
            words = generator.choice(passages)[generator.randrange(20) :]
            for trees in (own, past):
                trees.do([*words, generator.randrange(300)])
            assert drafter.draft([]) == draft((own.python, past.python), [], limits)
            path = words[:2]
            assert drafter.draft(path) == draft((own.python, past.python), path, limits)
        past.do("end")
        if past.python.finished > 2:
            past.do("forget")
        past.check(passage[i : i + 5] for passage in passages for i in range(35))


def test_tokens_may_be_as_large_as_32_bits():
    trees = Both(4)
    trees.do([2**31 - 1, 0, 2**31 - 1])
    trees.check([[2**31 - 1], [0, 2**31 - 1]])


def test_there_is_nothing_to_forget_in_an_empty_tree():
    with pytest.raises(IndexError):
        NativeSuffixTree(4).forget_oldest()


def test_texts_are_not_forgotten_while_another_grows():
    tree = NativeSuffixTree(4)
    tree.extend([1, 2, 3])
    tree.end_text()
    tree.extend([1])
    with pytest.raises(AssertionError, match="between two texts"):
        tree.forget_oldest()


def test_without_a_compiler_the_trees_are_those_in_python(monkeypatch):
    def unavailable():
        raise NativeUnavailable("no C compiler is here")

    monkeypatch.setattr(suffix_trees, "suffix_library", unavailable)
    suffix_trees._compiled.cache_clear()
    try:
        own, past, drafted = suffix_trees.suffix_trees(8, limits_of(8, 1.0, 1, 0.1))
    finally:
        suffix_trees._compiled.cache_clear()
    assert isinstance(own, SuffixTree)
    assert isinstance(past, SuffixTree)
    own.extend([1, 2, 3, 1, 2])
    assert drafted.draft([]).tokens == [3, 1, 2]
