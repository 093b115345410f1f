"""The steps of a round serve another loop, which drafts ahead while the target reads: the text is the same."""

from __future__ import annotations

import dataclasses
import itertools
import threading

import pytest
import torch
from contracts.kit import PROMPT, V, context_for, every, plain_text, scripted_draft, scripted_target
from contracts.models import BUILDERS, shared_network
from contracts.models import V as NETWORK_V
from contracts.overlapped import Overlapped, rooted_at
from contracts.table_plugins import listed
from contracts.tiny_networks import tiny_resources
from rows import each_row

from specchat.core.sampling import Sampling
from specchat.core.tree import ROOT, Guess, TokenTree
from specchat.decoding.assemble import assemble
from specchat.drafters import DRAFTERS
from specchat.settings import Settings
from specchat.trees import TREE_POLICIES

SAMPLINGS = pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.8)], ids=["greedy", "warm"])
TREE = {"controller": "fixed", "nodes": 8, "depth": 4, "width": 2}


def overlapped(target, draft, **settings):
    chosen = Settings().but({**TREE, "policy": "best_first", **settings})
    resources = tiny_resources(target)
    return Overlapped(assemble(chosen, target, draft, resources=resources))


def write(loop, count, context):
    """At least so many tokens, cut to so many, and the rounds."""
    loop.start(context)
    began, rounds = len(context.history), []
    while len(context.history) - began < count:
        rounds.append(loop.round(context))
    return context.history[began:][:count], rounds


@SAMPLINGS
@each_row("drafter", every(DRAFTERS))
def test_drafting_ahead_never_changes_the_text(drafter, sampling):
    loop = overlapped(scripted_target(), scripted_draft(), drafter=drafter.name)
    text, rounds = write(loop, 80, context_for(sampling))
    assert text == plain_text(scripted_target(), 80, sampling)
    assert loop.reused + loop.dropped == len(rounds) - 1


@pytest.mark.parametrize("policy", every(TREE_POLICIES))
def test_it_does_so_with_every_tree(policy):
    sampling = Sampling(temperature=0.8)
    loop = overlapped(scripted_target(), scripted_draft(), drafter="draft_model", policy=policy.name)
    text, _ = write(loop, 60, context_for(sampling))
    assert text == plain_text(scripted_target(), 60, sampling)
    assert loop.dropped > 0, "the draft model is wrong now and then"


@SAMPLINGS
def test_a_draft_that_was_right_is_used_and_saves_its_round_the_drafting(sampling):
    """The target drafts for itself, so whatever is expected comes true."""
    loop = overlapped(scripted_target(), scripted_target(), drafter="draft_model", policy="chain")
    text, rounds = write(loop, 60, context_for(sampling))
    assert text == plain_text(scripted_target(), 60, sampling)
    assert loop.dropped == 0
    for before, after in itertools.pairwise(rounds):
        assert before.accepted == before.tree.drafted
        assert after.tree.tokens[ROOT] == before.emitted[-1]
        assert after.tree.drafted == TREE["depth"] - 1, "one level of it was the token that came with the round before"


def test_it_proposes_while_the_target_is_reading():
    """A target that is not done before the next proposal was made: a serial loop would wait forever."""
    target, context, proposed = scripted_target(), context_for(), threading.Semaphore(0)
    loop = overlapped(target, None, drafter="suffix")
    read, propose = target.read, loop.speculator.propose

    def waiting_read(*arguments, **named):
        assert proposed.acquire(timeout=20), "no proposal was made meanwhile"
        return read(*arguments, **named)

    def telling_propose(about, plan):
        draft = propose(about, plan)
        if about is not context:
            proposed.release()
        return draft

    loop.start(context)
    target.read, loop.speculator.propose = waiting_read, telling_propose
    emitted = [token for _ in range(20) for token in loop.round(context).emitted]
    assert emitted == plain_text(scripted_target(), len(emitted))


@pytest.mark.parametrize("path", ["reference", "decoder"])
@pytest.mark.parametrize("drafter", ["stateful", "riding", "draft_model", "first"])
def test_states_riders_and_members_go_through_it_too(path, drafter):
    def build():
        return BUILDERS[path](shared_network("llama"), 256)

    with listed():
        loop = overlapped(build(), build(), drafter=drafter, method_options={"first.of": "suffix+draft_model"})
        context = context_for(Sampling(temperature=0.8), vocab_size=NETWORK_V)
        text, rounds = write(loop, 30, context)
    assert text == plain_text(build(), 30, Sampling(temperature=0.8))
    assert loop.reused + loop.dropped == len(rounds) - 1
    if drafter == "stateful":
        assert loop.speculator.drafter.tokens == context.history[:-1]
        given = loop.speculator.drafter.given
        assert all(end == first for (_, end), (first, _) in itertools.pairwise(given)), "each state once, without a gap"
    if drafter == "riding":
        assert all(round.extra_rows == 2 * len(round.tree) for round in rounds)


# --------------------------------------------------------------------------------------------- cutting a tree


def grown():
    """Below the root 4 and 5; below 4 the tokens 6 and 7; below 6 the token 8, drawn twice."""
    tree = TokenTree(3, V)
    four = tree.add(ROOT, Guess(4))
    tree.add(ROOT, Guess(5))
    six = tree.add(four, Guess(6))
    tree.add(four, Guess(7))
    tree.add(six, Guess(8, proposer="one"))
    tree.add(six, Guess(8, proposer="other"))
    return tree.freeze()


def test_a_tree_is_cut_to_what_goes_on_from_the_text():
    part = rooted_at(grown(), [1, 3], [1, 3, 4])
    assert part.tokens == [4, 6, 7, 8]
    assert part.parents == [-1, 0, 0, 1]
    assert [draw.guess.proposer for draw in part.draws(1)] == ["one", "other"]


@pytest.mark.parametrize("history", [[1, 2], [1, 3, 9], [1, 3, 4, 8], [1]])
def test_a_tree_that_goes_on_from_another_text_is_dropped(history):
    assert rooted_at(grown(), [1, 3], history) is None


def test_a_context_of_an_expected_text_leaves_the_real_one_alone():
    context = context_for(Sampling(presence_penalty=1.0))
    ahead = dataclasses.replace(context, history=[*context.history, 4, 4], round=1)
    ids, amounts = ahead.counts.seen((), torch.device("cpu"))
    assert {token: amount for token, amount in zip(ids.tolist(), amounts.tolist(), strict=True) if amount} == {4: 2}
    assert context.history == PROMPT
    assert not context.counts.seen((), torch.device("cpu"))[1].any()
