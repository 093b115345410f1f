"""Trained networks as drafters: what they have learnt counts, and they know the text whatever happens to it."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from contracts.kit import Letters, collect, converse, every
from contracts.models import V, own_decoder, shared_network
from contracts.random_networks import random_network
from contracts.tiny_networks import all_tiny_trained, sizes_for, tiny_trained, trained_resources

from specchat.config.trained_drafters import WEIGHTS, TrainedDrafters, write_drafter
from specchat.core.budget import Budget
from specchat.core.request import DEFAULT_REQUEST
from specchat.core.tree import ROOT, TokenTree
from specchat.drafters import DRAFTERS
from specchat.models.draft_heads.head import SharedWeights
from specchat.models.draft_heads.loading import save_weights
from tests.training.training_kit import unroll

TRAINED = [
    method for method in every(DRAFTERS) if method.values[0].needs_weights and not method.values[0].in_target_pass
]
PROMPT = [3, 5, 9, 5, 3, 7, 9, 2, 5, 3, 11, 4]
CHAIN = {"policy": "chain", "controller": "fixed", "nodes": 3, "depth": 3, "width": 1, "max_tokens": 16}


@cache
def weights():
    return own_decoder(shared_network("llama"), 256)


def a_target():
    return weights().with_new_cache()


def conversed(target, trained, **settings):
    return converse(
        target, vocabulary=Letters(V), resources=trained_resources(trained=trained), **{**CHAIN, **settings}
    )


@cache
def plain_reply(prompt_tokens, **settings):
    """What the target alone writes after so many tokens of the prompt."""
    target = a_target()
    conversation = conversed(target, all_tiny_trained(target), drafter="none", **settings)
    return collect(conversation.reply(PROMPT[:prompt_tokens], 7)).tokens


@pytest.fixture(scope="module")
def lessons():
    """Greedy texts of the target, its states on them, and what it holds likely after each token."""
    network = shared_network("llama")
    texts = torch.arange(16)[:, None]
    with torch.no_grad():
        for _ in range(40):
            texts = torch.cat([texts, network(texts).logits[:, -1:].argmax(-1)], dim=1)
        said = network(texts, output_hidden_states=True)
        last = []
        hook = network.model.layers[-1].register_forward_hook(lambda *about: last.append(about[2]))
        network(texts)
        hook.remove()
    states = last[0] if isinstance(last[0], torch.Tensor) else last[0][0]
    return texts, torch.stack([said.hidden_states[1], states], dim=2), said.logits.softmax(-1)


@pytest.fixture(scope="module")
def hydra(lessons):
    """A hydra that has learnt these texts."""
    texts, states, probabilities = lessons
    shared = SharedWeights.of(a_target(), torch.arange(V))
    network = random_network("hydra", sizes_for("hydra", 32, 3), shared, torch.Generator().manual_seed(0))
    optimiser = torch.optim.AdamW(network.parameters(), lr=2e-2)
    for _ in range(60):
        loss = torch.zeros(())
        for step, logits in enumerate(unroll(network, states, texts, 3), 1):
            expected = probabilities[:, step : step + logits.shape[1]]
            loss = loss - (expected * logits.log_softmax(-1)).sum(-1).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return network


def saved(network, folder):
    folder.mkdir()
    save_weights(network, folder / WEIGHTS)
    said = {"target": "tiny", "target_sha256": "ab" * 32, "licence": "MIT", "data": {}, "figures": {}}
    made = write_drafter(folder, method="hydra", options=network.sizes.options(), **said)
    return TrainedDrafters("tiny", (made,))


def acceptance(trained, texts):
    """Share of the drafted tokens that the target kept while it wrote some of these texts once more."""
    conversation = conversed(a_target(), trained, drafter="hydra", max_tokens=28, nodes=1)
    rounds = [round for text in texts[:3].tolist() for round in collect(conversation.reply(text[:12], 7)).rounds]
    return sum(round.accepted for round in rounds) / sum(round.tree.drafted for round in rounds)


def test_a_trained_drafter_is_kept_and_one_that_is_shuffled_or_zeroed_is_not(hydra, lessons, tmp_path):
    right = acceptance(saved(hydra, tmp_path / "trained"), lessons[0])
    before = {name: parameter.data.clone() for name, parameter in hydra.named_parameters()}
    found = {}
    try:
        for name, change in {
            "shuffled": lambda weight: weight.flatten()[torch.randperm(weight.numel())].view_as(weight),
            "zeroed": torch.zeros_like,
        }.items():
            for parameter, weight in zip(hydra.parameters(), before.values(), strict=True):
                parameter.data = change(weight)
            found[name] = acceptance(saved(hydra, tmp_path / name), lessons[0])
    finally:
        for parameter, weight in zip(hydra.parameters(), before.values(), strict=True):
            parameter.data = weight
    assert right > 0.3
    assert max(found.values()) < right / 4, found


@pytest.mark.parametrize("method", TRAINED)
def test_it_drafts_from_the_first_round_on(method):
    target = a_target()
    conversation = conversed(target, all_tiny_trained(target), drafter=method.name)
    rounds = collect(conversation.reply(PROMPT, 7)).rounds
    assert all(round.tree.drafted == 3 for round in rounds[:-3] if round.budget.nodes)


@pytest.mark.parametrize("method", TRAINED)
def test_after_an_edit_it_drafts_as_if_the_text_had_always_been_so(method):
    target = a_target()
    trained = all_tiny_trained(target, share=1.0)

    def drafts(*prompts):
        conversation = conversed(target.with_new_cache(), trained, drafter=method.name, max_tokens=10)
        for prompt in prompts:
            rounds = collect(conversation.reply(prompt, 7)).rounds
        return [(round.tree.tokens, round.tree.parents) for round in rounds[2:]]

    edited = [*PROMPT[:5], 40, *PROMPT[6:], 17, 18, 19, 20, 21, 22, 23, 24, 25, 26]
    cut = PROMPT[:9]
    for prompt in (edited, cut, PROMPT):
        assert drafts(PROMPT, prompt) == drafts(prompt)


@pytest.mark.parametrize("method", TRAINED)
def test_the_same_text_again_is_drafted_for_at_once(method):
    target = a_target()
    conversation = conversed(target, all_tiny_trained(target), drafter=method.name)
    first, second = (collect(conversation.reply(PROMPT, 7)).rounds for _ in range(2))
    assert first[0].tree.tokens == second[0].tree.tokens
    assert second[0].tree.drafted == 3


@pytest.mark.parametrize("method", TRAINED)
def test_tokens_of_the_text_can_be_guessed_and_other_rare_ones_not(method):
    """The tiny networks' frequent tokens are the first two thirds."""
    target = a_target()
    settings = {"method_options": {f"{method.name}.tokens": 5}, "drafter": method.name}
    conversation = conversed(target, all_tiny_trained(target), **settings)
    rounds = collect(conversation.reply([*PROMPT, 55, 60], 7)).rounds
    drafter = conversation.speculator.drafter
    tree = TokenTree(60, V)
    context_tokens = {*PROMPT, 55, 60, *(token for round in rounds for token in round.emitted)}
    drafter._network.begin([*PROMPT, 55, 60])
    possible = drafter._network.read(tree, [ROOT]).possible.tolist()
    assert len(possible) == len(set(possible))
    assert {*range(5), *PROMPT, 55, 60} <= set(possible) <= {*range(5), *context_tokens}


def test_a_merge_asks_a_trained_network_only_where_no_other_member_is_sure():
    target = a_target()
    trained = TrainedDrafters("tiny", (tiny_trained("hydra", target),))
    repeated = PROMPT * 4
    passes = {}
    for sure in (0.0, 1.0):
        options = {"merge.of": "suffix,hydra", "merge.sure": sure}
        conversation = conversed(target, trained, drafter="merge", method_options=options)
        rounds = collect(conversation.reply(repeated, 7)).rounds
        passes[sure] = sum(round.draft_passes for round in rounds) / len(rounds)
    assert passes[0.0] < passes[1.0]


class InTurns:
    """A controller that allows passes in some rounds only."""

    def __init__(self, allowed):
        self._allowed = allowed

    def plan(self, context):
        allowed = self._allowed[context.round % len(self._allowed)]
        return Budget(3, 3, 1) if allowed else Budget(0, 0, 0, passes=False)

    def observe(self, round):
        pass


@pytest.mark.parametrize("drafter", ["hydra", "medusa", "merge"])
def test_states_are_not_asked_for_while_no_passes_are_allowed(monkeypatch, drafter):
    """And one round with states is enough to draft again; prompt tokens that were put off do no harm."""
    target = a_target()
    plain = plain_reply(6)
    options = {"merge.of": "suffix+hydra"} if drafter == "merge" else {}
    conversation = conversed(target, all_tiny_trained(target), drafter=drafter, method_options=options)
    speculator = conversation.speculator
    speculator.controller = InTurns([False, False, True, True, True, False])
    asked = []
    read = target.read

    def noted(tree, new_nodes=None, request=DEFAULT_REQUEST):
        asked.append(bool(request.taps))
        return read(tree, new_nodes, request)

    monkeypatch.setattr(target, "read", noted)
    written = collect(conversation.reply(PROMPT[:6], 7))
    assert written.tokens == plain
    assert asked[:6] == [False, False, True, True, True, False]
    drafts = [round.draft_passes > 0 for round in written.rounds]
    assert drafts[:6] == [False, False, False, True, True, False]


@pytest.mark.parametrize("drafter", ["eagle", "parallel_spec", "falcon", "amphista", "clover"])
def test_a_drafter_that_reads_the_whole_text_is_given_all_states_all_the_same(drafter):
    target = a_target()
    conversation = conversed(target, all_tiny_trained(target), drafter=drafter)
    conversation.speculator.controller = InTurns([False, True])
    rounds = collect(conversation.reply(PROMPT, 7)).rounds
    assert [round.draft_passes > 0 for round in rounds[:4]] == [False, True, False, True]


@pytest.mark.parametrize("settings", [{"temperature": 0.0}, {"temperature": 0.8}], ids=["greedy", "sampled"])
@pytest.mark.parametrize("method", TRAINED)
def test_as_a_member_of_a_merge_it_drafts_and_the_text_stays(method, settings):
    target = a_target()
    plain = plain_reply(len(PROMPT), **settings)
    options = {"merge.of": f"suffix+{method.name}", "merge.sure": 1.0}
    given = {"drafter": "merge", "method_options": options, "policy": "best_first", "nodes": 4, "width": 2}
    written = collect(conversed(target, all_tiny_trained(target), **given, **settings).reply(PROMPT, 7))
    assert written.tokens == plain
    assert sum(round.draft_passes for round in written.rounds) >= len(written.rounds) / 2
