"""What every drafter of the table promises, with any tree policy and after any history."""

from __future__ import annotations

from itertools import islice, permutations

import pytest
import torch
from contracts.covering import covering
from contracts.kit import (
    PROMPT,
    Always,
    V,
    begin,
    context_for,
    every,
    looks_up,
    make_drafter,
    make_policy,
    make_rule,
    plain_text,
    scripted_draft,
    scripted_target,
    speak,
)
from rows import each_row

from specchat.acceptance import ACCEPTANCE_RULES
from specchat.core.budget import Budget
from specchat.core.reading import HeadTensors, Reading
from specchat.core.round import Round, Verdict
from specchat.core.sampling import Sampling
from specchat.core.tree import ROOT, DrawKind, Guess, TokenTree
from specchat.decoding.speculate import Speculator
from specchat.drafters import DRAFTERS
from specchat.trees import TREE_POLICIES

SAMPLINGS = [Sampling(), Sampling(temperature=0.8), Sampling(temperature=0.8, top_p=0.7, repetition_penalty=1.3)]

ALL_DEPTHS_AT_ONCE = {"medusa", "selector", "amphista", "parallel_spec"}

pytestmark = pytest.mark.parametrize("method", every(DRAFTERS))


def grow(drafter, context, width: int, levels: int) -> TokenTree:
    """A tree that asks for everything, checked at every step."""
    tree, frontier = TokenTree(context.root, context.vocab_size), [ROOT]
    for _ in range(levels):
        proposal = drafter.propose(tree, frontier, width, context)
        assert len(proposal) == len(frontier)
        following = []
        for parent, guesses in zip(frontier, proposal, strict=True):
            assert len(guesses) <= width
            for guess in guesses:
                assert 0 <= guess.token < context.vocab_size
                assert (guess.q is None) == (guess.kind is DrawKind.POINT)
                if guess.q is not None:
                    assert guess.q.shape == (context.vocab_size,)
                    assert float(guess.q.sum()) == pytest.approx(1.0)
                    assert float(guess.q[guess.token]) > 0, "a draw that its own q calls impossible"
                size = len(tree)
                child = tree.add(parent, guess)
                following += [child] if child == size else []
        frontier = following
        if not frontier:
            break
    return tree.freeze()


def play_round(tree: TokenTree, context, path_tokens: list[int], bonus: int) -> Round:
    """A round in which the target agreed with these tokens."""
    path = tree.follow(path_tokens)
    reading = Reading(tuple(range(len(tree))), HeadTensors(torch.zeros(len(tree), V)), frozenset(range(len(tree))))
    verdict = Verdict(path, bonus, tree)
    emitted = verdict.emitted
    return Round(context.round, len(context.history), context.history, Budget(8, 3, 2), tree, reading, verdict, emitted)


@each_row(
    ("wanted", "sampling", "width"),
    covering(
        [pytest.param(kind, id=kind.value) for kind in DrawKind],
        [pytest.param(one, id=name) for one, name in zip(SAMPLINGS, ("greedy", "warm", "truncated"), strict=True)],
        [pytest.param(width, id=str(width)) for width in (1, 3, V + 5)],
    ),
)
def test_it_proposes_at_most_width_tokens_of_the_vocabulary_for_each_node(method, wanted, sampling, width):
    drafter, context = make_drafter(method, scripted_draft()), context_for(sampling)
    context.wanted = wanted
    begin(drafter, context.history)
    grow(drafter, context, width, levels=2)


def test_a_draft_model_with_padded_embeddings_proposes_no_padding(method):
    drafter, context = make_drafter(method, scripted_draft(V + 9), V), context_for(Sampling(temperature=2.0))
    for wanted in DrawKind:
        context.wanted = wanted
        begin(drafter, context.history)
        grow(drafter, context, V, levels=2)


def test_it_has_nothing_to_say_about_no_nodes(method):
    drafter, context = make_drafter(method, scripted_draft()), context_for()
    begin(drafter, context.history)
    assert list(drafter.propose(TokenTree(context.root, V), [], 2, context)) == []


def test_it_answers_the_same_question_the_same_way(method):
    context = context_for(Sampling(temperature=0.8))
    trees = []
    for _ in range(2):
        drafter = make_drafter(method, scripted_draft())
        begin(drafter, context.history)
        trees.append(grow(drafter, context, 2, levels=3))
    assert trees[0].tokens == trees[1].tokens
    assert trees[0].parents == trees[1].parents


def test_a_round_that_was_drafted_and_never_observed_does_no_harm(method):
    drafter, context = make_drafter(method, scripted_draft()), context_for(Sampling(temperature=0.8))
    begin(drafter, context.history)
    grow(drafter, context, 2, levels=3)
    afterwards = grow(drafter, context, 2, levels=3)
    fresh = make_drafter(method, scripted_draft())
    begin(fresh, context.history)
    assert afterwards.tokens == grow(fresh, context, 2, levels=3).tokens


@each_row("order", list(permutations(["start", "observe", "propose"])), ids="-".join)
def test_start_and_observe_may_come_in_any_order(method, order):
    drafter, context = make_drafter(method, scripted_draft()), context_for()
    strange = TokenTree(context.root, V)
    strange.add(ROOT, Guess(2))
    for call in order:
        if call == "start":
            begin(drafter, context.history)
        elif call == "propose":
            grow(drafter, context, 2, levels=2)
        else:
            round = play_round(strange.freeze(), context, [2], 4)  # a tree it did not grow
            drafter.observe(round)
            context.emit(round.emitted)
    grow(drafter, context, 2, levels=2)


def test_it_finds_the_accepted_path_in_a_tree_that_a_transform_renumbered(method):
    draft = scripted_draft()
    drafter, context = make_drafter(method, draft), context_for()
    begin(drafter, context.history)
    own = grow(drafter, context, 2, levels=2)
    said = own.path_tokens(len(own) - 1) or [4]
    other = TokenTree(context.root, V)
    for token in reversed(range(V)):
        other.add(other.add(ROOT, Guess(token)), Guess(said[-1]))
    round = play_round(other.freeze(), context, said, 4)
    assert len(round.emitted) == len(said) + 1
    drafter.observe(round)
    context.emit(round.emitted)
    before = draft.counters.rows
    grow(drafter, context, 2, levels=1)
    if method.needs_draft_model:
        # Of what it had drafted all but the last level had been read; that and the bonus are all that is new.
        assert draft.counters.rows - before == 2


def test_an_edited_history_counts_from_start_on(method):
    drafter, before, after = make_drafter(method, scripted_draft()), context_for(), context_for(prompt=[8, 8, 1, 8])
    drafter.start(before.history)
    grow(drafter, before, 2, levels=2)
    drafter.start(after.history)
    fresh = make_drafter(method, scripted_draft())
    fresh.start(after.history)
    assert grow(drafter, after, 2, levels=2).tokens == grow(fresh, after, 2, levels=2).tokens


def test_drafters_may_be_changed_in_the_middle_of_a_reply(method):
    """To itself, to each drafter after it in the table and back, with one draft model that serves all of them.

    Both ways between two drafters are gone in the test of the first of them.
    """
    sampling = Sampling(temperature=0.8)
    draft, context = scripted_draft(), context_for(sampling)
    parts = (make_policy(TREE_POLICIES["expansion"]), make_rule(ACCEPTANCE_RULES["follow"]), Always(Budget(6, 3, 2)))
    target, drafter = scripted_target(), make_drafter(method, draft)
    speak(Speculator(target, drafter, *parts), 9, context)
    for other in islice(DRAFTERS.values(), list(DRAFTERS).index(method.name), None):
        others = make_drafter(other, draft)
        for one in (others, drafter, others):
            speculator = Speculator(target, one, *parts)
            speculator.start(context.history)
            speculator.round(context)
    emitted = context.history[len(PROMPT) :]
    assert emitted == plain_text(scripted_target(), len(emitted), sampling)


def test_its_riders_and_taps_are_of_the_right_kind(method):
    drafter, context = make_drafter(method, scripted_draft()), context_for()
    begin(drafter, context.history)
    tree = grow(drafter, context, 2, levels=2)
    extra_rows = drafter.extra_rows(tree)
    assert all(0 <= extra_row.parent < len(tree) for extra_row in extra_rows)
    assert all(extra_row.after is None or extra_row.after < place for place, extra_row in enumerate(extra_rows))
    assert all(isinstance(layer, int) for layer in drafter.taps)


def test_its_passes_are_those_of_its_draft_model(method):
    draft = scripted_draft()
    drafter, context = make_drafter(method, draft), context_for()
    begin(drafter, context.history)
    before = drafter.passes
    grow(drafter, context, 2, levels=3)
    if method.runs_a_network and not method.needs_draft_model:
        assert 1 <= drafter.passes - before <= 3, "one for a level at most"
    else:
        assert drafter.passes - before == (3 if method.needs_draft_model else 0)


def test_it_runs_no_model_where_passes_are_not_allowed(method):
    draft = scripted_draft()
    drafter, context = make_drafter(method, draft), context_for()
    begin(drafter, context.history)
    context.budget, before = Budget(0, passes=False), (draft.counters.passes, drafter.passes)
    silent = grow(drafter, context, 2, levels=3)
    assert (draft.counters.passes, drafter.passes) == before
    if method.runs_a_network and not looks_up(method):
        assert silent.drafted == 0
        context.budget = Budget(0)
        assert grow(drafter, context, 2, levels=3).drafted > 0


def test_passes_may_end_in_the_middle_of_a_tree(method):
    draft = scripted_draft()
    drafter, context = make_drafter(method, draft), context_for()
    begin(drafter, context.history)
    tree = TokenTree(context.root, context.vocab_size)
    (guesses,) = drafter.propose(tree, [ROOT], 2, context)
    children = list(dict.fromkeys(tree.add(ROOT, guess) for guess in guesses))
    context.budget, before = Budget(0, passes=False), (draft.counters.passes, drafter.passes)
    said = drafter.propose(tree, children, 2, context) if children else ()
    assert (draft.counters.passes, drafter.passes) == before
    if method.runs_a_network and not looks_up(method):
        assert children
        assert any(said) == (method.name in ALL_DEPTHS_AT_ONCE), "what the pass for the root has guessed costs none"
