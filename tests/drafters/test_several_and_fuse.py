"""Trees of several members as one: which paths it holds, who is asked where, and what is pruned."""

from __future__ import annotations

import math
import random

import pytest
from contracts.kit import (
    MadeOf,
    V,
    context_for,
    fixed_speculator,
    plain_text,
    scripted_draft,
    scripted_target,
    speak,
)
from contracts.proposing import Proposing
from rows import each_row

from specchat.core.budget import Budget
from specchat.core.sampling import Sampling
from specchat.core.tree import ROOT, DrawKind, Guess, TokenTree
from specchat.decoding.combinations import check_settings
from specchat.drafters.choice import choose
from specchat.drafters.fuse import Fuse
from specchat.drafters.options import FuseOptions, SeveralOptions
from specchat.drafters.parts import Parts
from specchat.drafters.several import Several
from specchat.errors import CombinationError, UsageError
from specchat.settings import Settings

WIDE = Budget(500, 4, 8)
SEEDS = range(40)


def several(*members):
    return Several(SeveralOptions("none"), MadeOf(scripted_target(V), drafters=members))


def fuse(draft, lookup, top=8):
    return Fuse(FuseOptions(top=top), MadeOf(scripted_target(V), drafters=(draft, lookup)))


def random_trie(generator, depth=4):
    """Path → the tokens that follow it, best first, all below one root."""
    trie, level = {}, [()]
    for _ in range(depth):
        following = []
        for path in level:
            tokens = generator.sample(range(6), generator.choice((0, 1, 1, 2, 3)))
            trie[path] = tokens
            following += [(*path, token) for token in tokens]
        level = following
    return trie


def paths_of(trie):
    return {(*path, token) for path, tokens in trie.items() for token in tokens}


def saying(trie, name, kind=DrawKind.POINT):
    """A drafter that says what stands in a trie, and complains where it is asked about another node."""

    def guesses(tree, node, width, context):
        path = tuple(tree.path_tokens(node))
        assert path in trie or len(path) == WIDE.depth, f"{name} is asked about {path}, which is not in its tree"
        tokens = trie.get(path, ())
        return [Guess(token, kind, None, -0.1 * rank, name) for rank, token in enumerate(tokens)][:width]

    return Proposing(guesses)


def grown(drafter, budget=WIDE):
    """The tree, grown as wide as the budget; every proposal has every token once."""
    context = context_for()
    tree, frontier = TokenTree(context.root, V), [ROOT]
    for _ in range(budget.depth):
        following = []
        for parent, guesses in zip(frontier, drafter.propose(tree, frontier, budget.width, context), strict=True):
            assert len({guess.token for guess in guesses}) == len(guesses), "two siblings of one token"
            following += [tree.add(parent, guess) for guess in guesses]
        frontier = following
        if not frontier:
            break
    return tree.freeze()


def paths_in(tree):
    paths = [tuple(tree.path_tokens(node)) for node in range(1, len(tree))]
    assert len(set(paths)) == len(paths)
    return set(paths)


@each_row("seed", SEEDS)
def test_severals_paths_are_those_of_all_members_and_no_others(seed):
    generator = random.Random(seed)
    tries = [random_trie(generator) for _ in range(3)]
    members = [saying(trie, name) for trie, name in zip(tries, "abc", strict=True)]
    tree = grown(several(*members))
    assert paths_in(tree) == set().union(*map(paths_of, tries))
    for node in range(1, len(tree)):
        path = tuple(tree.path_tokens(node))
        (proposer,) = {draw.guess.proposer for draw in tree.draws(tree.parents[node]) if draw.child == node}
        assert proposer.split("+") == [name for trie, name in zip(tries, "abc", strict=True) if path in paths_of(trie)]


def pruned(draft, lookup, top):
    """What is left of a lookup's trie: paths whose tokens the draft has among its likeliest, as far as it has any."""

    def stays(path):
        return all(not draft.get(path[:i]) or path[i] in draft[path[:i]][:top] for i in range(len(path)))

    return {path for path in paths_of(lookup) if stays(path)}


@each_row("top", [1, 2, 8])
@each_row("seed", SEEDS)
def test_fuses_paths_are_the_drafts_and_what_pruning_leaves_of_the_lookups(seed, top):
    generator = random.Random(seed)
    draft, lookup = random_trie(generator), random_trie(generator)
    tree = grown(fuse(saying(draft, "draft"), saying(lookup, "lookup"), top))
    assert paths_in(tree) == paths_of(draft) | pruned(draft, lookup, top)


def test_a_copy_that_leaves_the_drafts_tree_among_its_top_is_grafted_without_a_pass_of_the_model():
    draft = scripted_draft()
    model = Parts(scripted_target(V), draft).build(choose("draft_model", Settings()))
    context = context_for()
    model.start(context.history)
    (first,) = model.propose(TokenTree(context.root, V), [ROOT], 8, context)
    copy = (first[1].token, 7, 8, 9)
    drafter = fuse(model, saying({copy[:depth]: [token] for depth, token in enumerate(copy)}, "lookup"))
    tree, node, rows = TokenTree(context.root, V), ROOT, []
    for token in copy:  # of width 1: the draft's own tree is its likeliest token alone
        (guesses,) = drafter.propose(tree, [node], 1, context)
        assert [(guess.token, guess.proposer) for guess in guesses] == [(token, "lookup")]
        node = tree.add(node, guesses[0])
        rows.append(draft.counters.rows)
    assert len(set(rows)) == 1, "the root was read and nothing else"


def test_a_copy_that_begins_with_what_the_draft_finds_unlikely_has_no_place():
    draft, lookup = {(): [1, 2, 3], (1,): [], (2,): [], (3,): []}, {(): [4, 3], (4,): [5], (3,): [6], (3, 6): []}
    for top, kept in ((3, {(3, 6)}), (2, set())):
        tree = grown(fuse(saying(draft, "draft"), saying(lookup, "lookup"), top))
        assert paths_in(tree) == {(1,), (2,), (3,)} | kept


def test_without_passes_what_was_looked_up_goes_on_unpruned():
    settings = Settings().but({"method_options": {"fuse.lookup": "prompt_lookup"}})
    drafter = Parts(scripted_target(V), scripted_draft()).build(choose("fuse", settings))
    context = context_for(prompt=[3, 5, 7, 3, 5, 7, 3])
    context.budget = Budget(0, passes=False)
    drafter.start(context.history)
    assert [guess.token for guess in drafter.propose(TokenTree(3, V), [ROOT], 3, context)[0]] == [5]
    assert drafter.passes <= 1, "reading the prompt alone"


@pytest.mark.parametrize("budget", [Budget(200, 6, 3), Budget(40, 8, 2)], ids=["200 nodes", "40 nodes"])
@pytest.mark.parametrize("lookup", ["suffix", "prompt_lookup"])
def test_on_a_text_that_repeats_itself_fuse_accepts_more_than_either_member_alone(lookup, budget):
    def accepted(name, **options):
        settings = Settings().but({"method_options": options})
        drafter = Parts(scripted_target(), scripted_draft(noise=1.5)).build(choose(name, settings))
        speculator = fixed_speculator(scripted_target(), drafter, "expansion", budget)
        text, rounds = speak(speculator, 120, context_for())
        assert text[40:80] == text[79:119], "it repeats itself after 39 tokens"
        return sum(round.accepted for round in rounds) / len(rounds)

    assert accepted("fuse", **{"fuse.lookup": lookup}) > max(accepted("draft_model"), accepted(lookup))


# ------------------------------------------------------------------------------------------ settings


def test_fuse_needs_what_its_members_need():
    wanted = Settings().but({"drafter": "fuse"})
    with pytest.raises(CombinationError, match="drafter 'draft_model' needs a draft model"):
        check_settings(wanted, has_draft_model=False)
    check_settings(wanted.but({"method_options": {"fuse.draft": "token_recycling"}}), has_draft_model=False)


@pytest.mark.parametrize("text", ["suffix,prompt_lookup", ""])
def test_fuse_takes_one_draft_and_one_lookup(text):
    with pytest.raises(UsageError, match=r"fuse\.lookup"):
        check_settings(Settings().but({"drafter": "fuse", "method_options": {"fuse.lookup": text}}), True)


@pytest.mark.parametrize("policy", ["chain", "best_first"])
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.8)], ids=["greedy", "warm"])
@pytest.mark.parametrize(
    ("name", "options"), [("fuse", {}), ("several", {"several.of": "draft_model,suffix,token_recycling"})]
)
def test_the_text_is_the_targets_own(name, options, sampling, policy):
    drafter = Parts(scripted_target(), scripted_draft()).build(
        choose(name, Settings().but({"method_options": options}))
    )
    text, rounds = speak(
        fixed_speculator(scripted_target(), drafter, policy, Budget(12, 4, 4)), 80, context_for(sampling)
    )
    assert text == plain_text(scripted_target(), 80, sampling)
    assert math.fsum(round.accepted for round in rounds) > 0
