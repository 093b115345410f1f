"""Loops that draft while the target reads: the text is the sequential loop's, and the trace is the published one."""

from __future__ import annotations

import dataclasses
import itertools
import threading
from collections import Counter

import pytest
import torch
from contracts.kit import (
    PROMPT,
    V,
    collect,
    context_for,
    converse,
    every,
    plain_text,
    reply,
    scripted_draft,
    scripted_target,
    speak,
)
from contracts.models import BUILDERS, perturbed, shared_network
from contracts.models import V as NETWORK_V
from contracts.pass_requests import requested
from contracts.text_laws import chi_square_p
from contracts.tiny_networks import tiny_resources
from rows import each_row

from specchat.core.budget import Budget
from specchat.core.noise import Stream
from specchat.core.sampling import Sampling
from specchat.core.tree import ROOT, DrawKind, Guess, TokenTree
from specchat.decoding.assemble import assemble
from specchat.decoding.combinations import keeps_draws
from specchat.decoding.conversation import Drafted
from specchat.decoding.overlap import Branch, likeliest_leaf
from specchat.decoding.reply_events import ReplyEnded
from specchat.decoding.speculate import Speculator
from specchat.decoding.teacher_forcing import chain
from specchat.drafters import DRAFTERS
from specchat.errors import CombinationError
from specchat.models.backends.scripted import ScriptedModel
from specchat.settings import OPTIONS, Settings
from specchat.trees import TREE_POLICIES

LOOPS = [loop for loop in OPTIONS["loop"].choices if loop != "sequential"]
SAMPLINGS = [Sampling(), Sampling(temperature=0.8, repetition_penalty=1.1)]
TREE = {"controller": "fixed", "nodes": 8, "depth": 4, "width": 2}
AHEAD = [method for method in every(DRAFTERS) if method.values[0].drafts_ahead]


def looped(target, draft, **settings):
    chosen = Settings().but({**TREE, "drafter": "draft_model", **settings})
    return assemble(chosen, target, draft, resources=tiny_resources(target))


# ------------------------------------------------------------------------------------------------ the text


@each_row("loop", LOOPS)
@each_row("sampling", SAMPLINGS)
@each_row("policy", every(TREE_POLICIES))
def test_the_text_is_the_sequential_loops_with_every_tree(policy, sampling, loop):
    speculator = looped(scripted_target(), scripted_draft(), loop=loop, policy=policy.name)
    text, rounds = speak(speculator, 12, context_for(sampling))
    assert text == plain_text(scripted_target(), 12, sampling)
    assert all(round.tree.drafted <= TREE["nodes"] for round in rounds)
    assert speculator.state.reused + speculator.state.dropped == len(rounds) - 1


@each_row("loop", LOOPS)
@each_row("drafter", AHEAD)
def test_it_is_so_with_every_drafter_that_drafts_ahead_on_our_decoder(drafter, loop):
    build = BUILDERS["decoder"]
    target, draft = build(shared_network("llama"), 256), build(shared_network("llama"), 256)
    speculator = looped(target, draft, loop=loop, drafter=drafter.name, policy="best_first", depth=2)
    text, _ = speak(speculator, 12, context_for(SAMPLINGS[1], vocab_size=NETWORK_V))
    assert text == plain_text(build(shared_network("llama"), 256), 12, SAMPLINGS[1])
    if drafter.name == "draft_model" and loop != "mirror":
        assert speculator.state.reused > speculator.state.dropped, "it has the target's weights"


@each_row("loop", LOOPS)
@each_row("drafter", [method for method in every(DRAFTERS) if not method.values[0].drafts_ahead])
def test_other_drafters_are_refused_with_the_nearest_that_works(drafter, loop):
    with pytest.raises(CombinationError, match=f"loop '{loop}' .*nearest that works: loop 'sequential', or drafter"):
        looped(scripted_target(), scripted_draft(), loop=loop, drafter=drafter.name)


SHARP, VAGUE = torch.tensor([0.5, 0.04, 0.23, 0.23]), torch.tensor([0.4, 0.34, 0.13, 0.13])
LAWS = [
    ("pearl", "multi_step", "expansion"), ("pearl", "block", "chain"), ("overlap", "recursive", "rsd_s"),
    ("overlap", "traversal", "rsd_c"), ("mirror", "multi_step", "expansion"),
]  # fmt: skip


@each_row("loop, rule, policy", LAWS)
def test_rules_by_probability_keep_their_law(loop, rule, policy):
    """Of a text whose next token depends on the last one."""

    def markov(law):
        return ScriptedModel(4, lambda text: law.roll(text[-1]).log())

    speculator = looped(markov(SHARP), markov(VAGUE), loop=loop, rule=rule, policy=policy, temperature=1.0, depth=2)
    assert keeps_draws(TREE_POLICIES[policy], DrawKind.IID if rule == "multi_step" else DrawKind.WOR) or rule == "block"
    text, _ = speak(speculator, 500, context_for(Sampling(temperature=1.0), vocab_size=4, prompt=[0, 1, 2, 3]))
    assert speculator.state.reused > 30
    for last in range(4):
        seen = Counter(after for before, after in itertools.pairwise(text) if before == last)
        expected = (SHARP.roll(last).double() / SHARP.sum() * seen.total()).tolist()
        assert chi_square_p([seen[token] for token in range(4)], expected) > 1e-4


def test_a_reply_uses_nothing_that_was_drafted_ahead_in_the_one_before():
    """It goes on from where that one was cut off, with another seed."""
    warm, found = Sampling(temperature=1.0), []
    for warmed in (True, False):
        target = scripted_target()
        loop = looped(target, scripted_draft(), loop="overlap", rule="multi_step", policy="chain")
        before = context_for(warm, 1)
        if warmed:
            speak(loop, 1, before)
            while loop.state.branches[0].going_on(before.history, before.budget) is None:
                loop.round(before)
            history = before.history
        _, rounds = speak(loop, 8, context_for(warm, 2, prompt=history))
        found.append([round.tree.tokens for round in rounds])
    assert found[0] == found[1]


def test_where_other_replies_share_the_pass_rounds_are_sequential():
    """PEARL would never draft then: nothing is made while the target reads."""
    chosen = {"drafter": "draft_model", "loop": "pearl", "max_tokens": 30}
    conversation = converse(scripted_target(), scripted_draft(), **TREE, **chosen)
    steps, tokens = conversation.steps(PROMPT, 7), []
    step = next(steps)
    while not isinstance(step, ReplyEnded):
        if isinstance(step, Drafted):
            step = steps.send(Speculator.submit(step.speculator, step.draft))
            tokens += step.round.emitted
        else:
            step = next(steps)
    assert tokens == reply(scripted_target(), max_tokens=30).tokens
    assert conversation.speculator.drafter.passes > 0


def test_settings_choose_the_loop_while_a_reply_is_written():
    conversation = converse(scripted_target(), scripted_draft(), drafter="draft_model", max_tokens=40, **TREE)
    events, loops = [], itertools.cycle([*LOOPS, "sequential"])
    for event in conversation.reply(PROMPT, 7):
        events.append(event)
        conversation.change(conversation.settings.but({"loop": next(loops)}))
    assert collect(iter(events)).tokens == reply(scripted_target(), max_tokens=40).tokens


# --------------------------------------------------------------------------------------------- both at once


@each_row("loop", LOOPS)
def test_the_drafter_reads_while_the_target_does(loop):
    """The target ends no pass before the drafter has begun one: drafting after it, as before it, would wait forever."""
    target, draft = scripted_target(), scripted_draft()
    speculator = looped(target, draft, loop=loop, policy="chain")
    reading, drafted = threading.Event(), threading.Event()
    target_read, draft_read = target.read, draft.read

    def wait():
        reading.set()
        assert drafted.wait(30), "nothing was drafted while the target was reading"

    def waiting_read(tree, new_nodes=None, request=None):
        if loop != "mirror":
            wait()
            return target_read(tree, new_nodes, request)
        looks = [dataclasses.replace(h, look=lambda *about, h=h: (h.look(*about), wait())[0]) for h in request.hooks]
        return target_read(tree, new_nodes, dataclasses.replace(request, hooks=tuple(looks)))

    def telling_read(*arguments, **named):
        if speculator.state.round is not None:  # it drafts ahead
            assert reading.wait(30), "the target is not reading meanwhile"
            drafted.set()
        return draft_read(*arguments, **named)

    context = context_for()
    speculator.start(context.history)
    target.read, draft.read = waiting_read, telling_read
    emitted = []
    for _ in range(8):
        reading.clear()
        drafted.clear()
        emitted += speculator.round(context).emitted
    assert emitted == plain_text(scripted_target(), len(emitted))


@each_row("loop", LOOPS)
def test_a_pass_that_fails_ends_the_round_with_its_error(loop):
    target = scripted_target()
    speculator = looped(target, scripted_draft(), loop=loop)
    context = context_for()
    speculator.start(context.history)

    def failing(*arguments, **named):
        raise MemoryError("no room")

    target.read = failing
    with pytest.raises(MemoryError, match="no room"):
        speculator.round(context)


# ---------------------------------------------------------------------------------------------------- PEARL


def published_trace(right, gamma, rounds):
    """(mode, confirmed tokens) of each iteration of PEARL's engine.py, whose guess at a position is right or not."""
    trace, pre, at = [], True, 0
    for _ in range(rounds):
        if pre:  # the target checks the first of the gamma tokens that are drafted meanwhile
            pre = not right[at]
            trace.append(("pre", 1))
            at += 1
            continue
        # the rest of the last gamma, and the first of the next
        accepted = next((n for n in range(gamma) if not right[at + n]), gamma)
        pre = accepted < gamma
        trace.append(("post", accepted + pre))
        at += accepted + pre
    return trace


@each_row("gamma", [2, 3, 5])
@each_row("seed", range(4))
def test_pearls_trace_is_the_published_one(seed, gamma):
    generator = torch.Generator().manual_seed(seed)
    right = (torch.rand(400, generator=generator) < 0.8).tolist()
    first = len(PROMPT)

    def said(text, wrong):
        on_the_way = text[first:] == [place % V for place in range(first, len(text))]
        token = (len(text) + (1 if wrong or not on_the_way else 0)) % V
        return 20.0 * torch.nn.functional.one_hot(torch.tensor(token), V).float()

    target = ScriptedModel(V, lambda text: said(text, wrong=False))
    draft = ScriptedModel(V, lambda text: said(text, wrong=not right[len(text) - first]))
    speculator = looped(target, draft, loop="pearl", policy="chain", depth=gamma, nodes=gamma, width=1)
    context = context_for()
    speculator.start(context.history)
    rounds = [speculator.round(context) for _ in range(40)]
    trace = [("post" if round.tree.drafted else "pre", len(round.emitted)) for round in rounds]
    assert trace == published_trace(right, gamma, 40)
    assert {mode for mode, _ in trace} == {"pre", "post"}


@each_row("loop", ["pearl", "overlap"])
def test_where_all_is_accepted_the_draft_model_reads_every_token_once(loop):
    draft = scripted_target()
    speculator = looped(scripted_target(), draft, loop=loop, policy="chain")
    text, rounds = speak(speculator, 60, context_for())
    assert text == plain_text(scripted_target(), 60)
    assert speculator.state.dropped == 0
    read = len(PROMPT) + sum(len(round.emitted) for round in rounds) + 2 * TREE["depth"]
    assert draft.counters.rows <= read
    assert sum(round.draft_passes for round in rounds) >= draft.counters.passes - 2, "those made ahead count too"


# ------------------------------------------------------------------------------------------------ Mirror-SD


def test_a_branch_is_reused_as_often_as_the_token_is_among_the_early_candidates():
    build, layer, sampling = BUILDERS["decoder"], 2, Sampling(temperature=0.8)
    rates = []
    for candidates in (1, 4, 16):
        target, draft = build(shared_network("llama"), 256), build(perturbed(shared_network("llama"), 0.3), 256)
        choice = {
            "loop": "mirror",
            "mirror_layer": layer,
            "mirror_candidates": candidates,
            "policy": "chain",
            "depth": 2,
        }
        speculator, context = looped(target, draft, **choice), context_for(sampling, vocab_size=NETWORK_V)
        _, rounds = speak(speculator, 30, context)
        other, found = build(shared_network("llama"), 256), 0
        for round in rounds[:-1]:
            text, path = context.history[: round.start], [round.tree.tokens[node] for node in round.verdict.path]
            other.prefill(text[:-1])
            reading = other.read(chain([text[-1], *path], NETWORK_V), request=requested(taps={layer - 1}))
            early = other.head(reading.taps[layer - 1])
            laws = [context.law_after(reading_tree(text, path), at, row) for at, row in enumerate(early)]
            picks = [
                law.best(candidates, context.noise, Stream.TARGET, len(text) + at).tolist()
                for at, law in enumerate(laws)
            ]
            walked = all(picks[at][0] == token for at, token in enumerate(path))
            leaf = round.verdict.path[-1] if path else ROOT
            stops = round.tree.child(leaf, picks[-1][0]) is None
            found += walked and stops and round.verdict.bonus in picks[-1]
        assert speculator.state.reused == found
        rates.append(found / (len(rounds) - 1))
    assert rates == sorted(rates)
    assert rates[0] < rates[-1]


def reading_tree(text, path):
    tree = TokenTree(text[-1], NETWORK_V)
    for node, token in enumerate(path):
        tree.add(node, Guess(token))
    return tree.freeze()


# ------------------------------------------------------------------------------------------ cutting a branch


def grown():
    """Below the root 4 and 5; below 4 the tokens 6 and 7; below 6 the token 8, drawn twice."""
    tree = TokenTree(3, V)
    four = tree.add(ROOT, Guess(4, logprob=-2.0))
    tree.add(ROOT, Guess(5, logprob=-1.0))
    six = tree.add(four, Guess(6))
    tree.add(four, Guess(7))
    tree.add(six, Guess(8, proposer="one"))
    tree.add(six, Guess(8, proposer="other"))
    return tree.freeze()


def test_a_branch_is_cut_to_what_goes_on_from_the_text():
    branch = Branch([1, 3], grown(), Budget(8, 4, 2), ROOT)
    part = branch.going_on([1, 3, 4], Budget(8, 4, 2))
    assert part.tokens == [4, 6, 7, 8]
    assert part.parents == [-1, 0, 0, 1]
    assert [draw.guess.proposer for draw in part.draws(1)] == ["one", "other"]
    for history in ([1, 2], [1, 3, 9], [1, 3, 4, 8], [1, 3, 5], [1]):
        assert branch.going_on(history, Budget(8, 4, 2)) is None, history
    assert branch.going_on([1, 3, 4], Budget(7, 4, 2)) is None


def test_the_likeliest_leaf_is_below_the_likeliest_children():
    tree = grown()
    assert tree.tokens[likeliest_leaf(tree)] == 5
    joined = tree.with_children(2, [Guess(6), Guess(9)])
    assert joined.tokens == [*tree.tokens, 6, 9]
    assert [joined.tokens[child] for child in joined.children(2)] == [6, 9]
    assert len(tree) == 6
    assert not tree.children(2)
