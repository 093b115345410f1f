"""Masks behind the nodes of a tree: what the target says there is the next proposal, and the tree stays as it is."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from functools import partial

import pytest
import torch
from contracts.kit import V, context_for, every, fixed_speculator, make_policy, plain_text, speak
from contracts.models import BUILDERS, shared_network
from contracts.models import V as NETWORK_V
from contracts.pass_requests import requested
from contracts.tiny_networks import tiny_trained

from specchat.core.budget import Budget
from specchat.core.drafting_networks import MaskRows
from specchat.core.request import Adapter
from specchat.core.sampling import Sampling
from specchat.core.tree import ROOT, Guess, TokenTree
from specchat.drafters import DRAFTERS
from specchat.drafters.mask_rows import RowPrice
from specchat.drafters.parts import PairResources, Parts
from specchat.models.backends.scripted import ScriptedModel, random_says
from specchat.models.draft_heads.masks import mask_rows, with_token
from specchat.trees import TREE_POLICIES

METHODS = [method for method in every(DRAFTERS) if method.values[0].in_target_pass]
SAMPLINGS = [Sampling(), Sampling(temperature=0.8), Sampling(temperature=0.8, repetition_penalty=1.5)]


def scripted():
    """A target for whose extra rows every mask is the token that the target holds likeliest at its place."""
    return ScriptedModel(V, random_says(V, memory=2, sharpness=1.2))


def drafter_of(target, name="prompt_tokens", masks=None, **options):
    method, trained = DRAFTERS[name], tiny_trained(name, target)
    make = (lambda *_: masks) if masks else mask_rows
    parts = Parts(target, trained=trained, resources=PairResources(make_masks=make))
    return method.load()(method.make_options(options), parts)


def adapted_masks(hidden=32, keys=16, layers=3, seed=5):
    """Masks with an adapter that adds something to every attention."""
    made = torch.Generator().manual_seed(seed)

    def drawn(*shape):
        return 0.3 * torch.randn(*shape, generator=made)

    sizes = {"q": (hidden, hidden), "k": (keys, hidden), "v": (keys, hidden), "o": (hidden, hidden)}
    factors = {
        (layer, name): (drawn(3, inputs), drawn(outputs, 3))
        for layer in range(layers)
        for name, (outputs, inputs) in sizes.items()
    }
    return MaskRows((drawn(hidden), drawn(hidden), drawn(hidden)), Adapter(factors))


@pytest.mark.parametrize("method", METHODS)
def test_the_guesses_of_a_round_are_for_the_places_after_the_next_one(method):
    """Where what a mask says is always right, every round but the first accepts as many guesses as there are masks."""
    target = scripted()
    drafter, context = drafter_of(target, method.name, rows=12), context_for()
    text, rounds = speak(fixed_speculator(target, drafter, "chain", Budget(5, 5, 1)), 41, context)
    assert text == plain_text(scripted(), 41)
    assert [len(round.emitted) for round in rounds] == [1] + [4] * 10


@pytest.mark.parametrize("method", METHODS)
def test_there_is_no_pass_but_the_targets_and_every_row_is_counted(method):
    for rows in (1, 2, 7, 100):
        target = scripted()
        drafter = drafter_of(target, method.name, rows=rows)
        speculator = fixed_speculator(target, drafter, "best_first", Budget(6, 4, 2))
        before = target.counters.rows, target.counters.passes
        _, rounds = speak(speculator, 30, context_for(Sampling(temperature=0.8)))
        assert drafter.passes == sum(round.draft_passes for round in rounds) == 0
        assert [round.extra_rows for round in rounds] == [min(rows, 3 * len(round.tree)) for round in rounds]
        prompt = len(context_for().history) - 1
        assert target.counters.rows - before[0] == prompt + sum(round.rows for round in rounds)
        assert target.counters.passes - before[1] <= 1 + len(rounds)


@pytest.mark.parametrize("behind", ["likeliest", "last"])
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "warm", "warm penalised"])
@pytest.mark.parametrize("method", METHODS)
def test_the_text_is_that_of_plain_decoding(method, sampling, behind):
    def target():
        return BUILDERS["decoder"](shared_network("llama"), 256)

    drafter = drafter_of(model := target(), method.name, behind=behind)
    context = context_for(sampling, vocab_size=NETWORK_V)
    text, rounds = speak(fixed_speculator(model, drafter, "best_first", Budget(6, 4, 2)), 30, context)
    assert text == plain_text(target(), 30, sampling)
    assert any(round.tree.drafted for round in rounds)


@pytest.mark.parametrize("method", METHODS)
def test_masks_behind_every_node_always_lead_to_a_draft_and_those_behind_the_last_do_not(method):
    def partly_accepted(behind):
        """After each round that accepted some of its guesses, whether the next one had any."""
        target = scripted()
        drafter = drafter_of(target, method.name, behind=behind, rows=100)
        context = context_for(Sampling(temperature=0.8))
        _, rounds = speak(fixed_speculator(target, drafter, "chain", Budget(5, 5, 1)), 120, context)
        pairs = itertools.pairwise(rounds)
        return [bool(after.tree.drafted) for one, after in pairs if len(one.emitted) - 1 < one.tree.drafted]

    every_node, last_node = partly_accepted("likeliest"), partly_accepted("last")
    assert len(every_node) > 5
    assert all(every_node)
    assert last_node
    assert not any(last_node)


def test_masks_behind_every_node_accept_at_least_as_much_as_those_behind_the_last():
    """Quadratic and linear decoding of the same texts, where masks are sometimes wrong."""
    passes: dict[str, list[int]] = {"likeliest": [], "last": []}
    for behind, found in passes.items():
        for temperature in (0.5, 0.8, 1.0):
            target = scripted()
            drafter, context = drafter_of(target, behind=behind, rows=100), context_for(Sampling(temperature))
            _, rounds = speak(fixed_speculator(target, drafter, "chain", Budget(5, 5, 1)), 100, context)
            found.append(len(rounds))
    assert all(quadratic <= linear for quadratic, linear in zip(*passes.values(), strict=True))
    assert sum(passes["likeliest"]) < 0.9 * sum(passes["last"])


@pytest.mark.parametrize("path", BUILDERS)
def test_a_sampler_orders_the_likeliest_tokens_of_a_mask_by_the_token_before(path):
    model, made = BUILDERS[path](shared_network("llama"), 256), torch.Generator().manual_seed(3)
    first, second = torch.randn(16, 64, generator=made), 0.3 * torch.randn(32, 16, generator=made)
    sampler = partial(with_token, first, second, 1e-6)
    drafter = drafter_of(model, "mtp", masks=replace(adapted_masks(), sampler=sampler), rows=12)
    context = context_for(vocab_size=NETWORK_V)
    speak(fixed_speculator(model, drafter, "best_first", Budget(7, 3, 2)), 4, context)
    said, tree = drafter._said, TokenTree(context.root, NETWORK_V)
    assert torch.allclose(model.head(said.states).float(), said.logits, atol=0.05), "the states are the masks' own"
    nodes = [ROOT, tree.add(ROOT, Guess(4)), tree.add(ROOT, Guess(31))]
    orders = []
    for node, guesses in zip(nodes, drafter.propose(tree, nodes, 32, context), strict=True):
        depth, tokens = tree.depths[node], [guess.token for guess in guesses]
        knowing = sampler(said.states[depth : depth + 1], model.embed([tree.tokens[node]]))
        scores = model.head(knowing.to(said.states.dtype)).float()[0, tokens]
        assert (scores.diff() < 0.05).all(), "the likeliest with this token before come first"
        assert sorted(tokens) == sorted(said.logits[depth].topk(32).indices.tolist())
        mass = said.logits[depth].softmax(0)[tokens].sum()
        assert sum(math.exp(guess.logprob) for guess in guesses) == pytest.approx(float(mass), rel=1e-3)
        orders.append(tokens)
    assert orders[1] != orders[2], "what follows depends on the token before"


@pytest.mark.parametrize(("tokens", "most"), [(None, 6), (0.0, 15), (0.2, 5), (9.0, 0)])
def test_with_0_rows_there_are_as_many_masks_as_pay(tokens, most, monkeypatch):
    monkeypatch.setattr(RowPrice, "tokens", tokens)
    target = scripted()
    _, rounds = speak(fixed_speculator(target, drafter_of(target, rows=0), "chain", Budget(4, 4, 1)), 24, context_for())
    assert max(round.extra_rows for round in rounds[:20]) <= most
    assert (rounds[-1].extra_rows > 0) == (most > 0)


def test_an_ensemble_says_the_mean_of_its_members_each_of_which_sees_its_own_masks_alone():
    model, said = BUILDERS["decoder"](shared_network("llama"), 256), []
    one, other = adapted_masks(), adapted_masks(seed=6)
    both = replace(one, embeddings=(*one.embeddings, *other.embeddings), ensemble=2)
    for masks in (one, replace(other, adapter=one.adapter), both):
        drafter = drafter_of(model, "mtp", masks=masks, rows=12)
        context = context_for(vocab_size=NETWORK_V)
        _, rounds = speak(fixed_speculator(model, drafter, "chain", Budget(0)), 2, context)
        _, rounds = speak(fixed_speculator(model, drafter, "chain", Budget(1, 1, 1)), 1, context)
        said.append(drafter._said.logits[:3])
        assert rounds[-1].extra_rows == (6 if masks is both else 3)
    torch.testing.assert_close(said[2], (said[0] + said[1]) / 2, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("path", BUILDERS)
def test_the_rows_of_the_tree_keep_their_bits_whether_the_adapter_acts_or_not(path):
    masks, said = adapted_masks(), []
    tree = TokenTree(3, NETWORK_V)
    for parent, token in ((ROOT, 5), (ROOT, 9), (1, 7), (3, 11)):
        tree.add(parent, Guess(token, logprob=-0.5))
    tree.freeze()
    model = BUILDERS[path](shared_network("llama"), 256)  # one: products round by where their rows lie in memory
    for given in (masks, MaskRows(masks.embeddings), None):
        extra_rows = drafter_of(model, masks=given).extra_rows(tree) if given else ()
        model.prefill(())
        model.prefill([1, 7, 30, 7, 2, 59, 14])
        said.append(model.read(tree, request=requested(extra_rows)))
    adapted, embeddings_alone, none = said
    assert torch.equal(adapted.logits, embeddings_alone.logits)
    assert not torch.equal(adapted.extra_row_logits, embeddings_alone.extra_row_logits), "the adapter acts"
    assert none.extra_row_logits is None
    torch.testing.assert_close(adapted.logits, none.logits, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("path", BUILDERS)
def test_adapted_masks_draft_and_leave_the_text_as_it_is(path):
    model = BUILDERS[path](shared_network("llama"), 256)
    drafter = drafter_of(model, "mtp", masks=adapted_masks())
    text, rounds = speak(
        fixed_speculator(model, drafter, "best_first", Budget(6, 4, 2)), 30, context_for(vocab_size=NETWORK_V)
    )
    assert all(round.tree.drafted for round in rounds[1:])
    assert text == plain_text(BUILDERS[path](shared_network("llama"), 256), 30)


def test_nothing_is_guessed_after_a_round_without_masks_or_in_another_text():
    target = scripted()
    drafter, context = drafter_of(target, rows=12), context_for()
    speculator = fixed_speculator(target, drafter, "chain", budget := Budget(5, 5, 1))
    speak(speculator, 5, context)
    policy = make_policy(TREE_POLICIES["chain"])
    assert policy.grow(drafter, context, budget).drafted == 3
    speculator.controller.budget = Budget(0)
    speculator.round(context)
    assert policy.grow(drafter, context, budget).drafted == 0
    speculator.controller.budget = budget
    speculator.round(context)
    assert policy.grow(drafter, context, budget).drafted == 3
    drafter.start([3, 5, 7])
    assert policy.grow(drafter, context_for(prompt=[3, 5, 7]), budget).drafted == 0
