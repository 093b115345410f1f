"""Speculation never changes the text, with any drafter, tree policy and way of sampling."""

from __future__ import annotations

import itertools
from functools import cache

import pytest
from contracts.covering import covering, named
from contracts.draw_plugins import AllOfThem, Together
from contracts.kit import (
    PROMPT,
    Always,
    Letters,
    V,
    collect,
    context_for,
    converse,
    every,
    keeps_the_draws,
    lossless_rules,
    make_drafter,
    make_policy,
    make_rule,
    plain_text,
    reply,
    scripted_draft,
    scripted_target,
    speak,
)
from contracts.models import MODELS, own_decoder, perturbed, shared_network
from contracts.models import V as NETWORK_V
from contracts.proposing import Proposing
from rows import each_row

from specchat.acceptance import ACCEPTANCE_RULES
from specchat.controllers import CONTROLLERS
from specchat.core.budget import Budget
from specchat.core.sampling import Sampling
from specchat.core.tree import ROOT, Guess
from specchat.decoding.speculate import Speculator
from specchat.drafters import DRAFTERS
from specchat.errors import ProposalError
from specchat.models.backends.transformers_model import ReferenceModel
from specchat.models.decoder.early_exits import NestedDecoder
from specchat.settings import COLDEST
from specchat.trees import TREE_POLICIES

TOKENS = 10

SAMPLINGS = {
    "greedy": {},
    "greedy with penalties": {"repetition_penalty": 1.3, "presence_penalty": 0.4, "frequency_penalty": 0.3},
    "warm": {"temperature": 0.8},
    "as cold as can be": {"temperature": COLDEST},
    "top-p": {"temperature": 0.8, "top_p": 0.7},
    "top-k and min-p": {"temperature": 0.8, "top_k": 6, "min_p": 0.1},
    "everything": {
        "temperature": 0.8,
        "top_k": 15,
        "top_p": 0.9,
        "min_p": 0.03,
        "repetition_penalty": 1.2,
        "presence_penalty": 0.2,
        "frequency_penalty": 0.1,
    },
}


def sampling_of(settings: dict) -> Sampling:
    return Sampling(**settings)


def comparable(rule, settings: dict) -> bool:
    return settings.get("temperature", 0.0) == 0.0 or keeps_the_draws(rule)


def rules_and_samplings():
    """Above temperature 0 a rule that uses draft probabilities keeps the law (see test_sampling_law), not the draws."""
    for rule in lossless_rules():
        for name, settings in SAMPLINGS.items():
            if comparable(rule.values[0], settings):
                yield pytest.param(rule.values[0], settings, id=f"{rule.id}-{name}")


def same_text(seed: int, settings: dict, **methods: str) -> None:
    said = reply(scripted_target(), scripted_draft(), seed=seed, max_tokens=TOKENS, **methods, **settings)
    assert said.tokens == truth(seed, tuple(settings.items()))
    assert said.text == "".join(chr(ord("A") + token) for token in said.tokens)


@cache
def truth(seed: int, settings: tuple) -> list[int]:
    return plain_text(scripted_target(), TOKENS, sampling_of(dict(settings)), seed)


@each_row(
    ("drafter", "policy", "rule", "settings"), covering(every(DRAFTERS), every(TREE_POLICIES), rules_and_samplings())
)
def test_speculation_never_changes_the_text(drafter, policy, rule, settings):
    same_text(1, settings, drafter=drafter.name, policy=policy.name, rule=rule.name)


@pytest.mark.parametrize("seed", range(2, 6))
def test_the_coldest_temperature_above_0_writes_the_greedy_text(seed):
    assert truth(seed, (("temperature", COLDEST),)) == truth(seed, ())


@pytest.mark.parametrize("seed", [2, 3])
@pytest.mark.parametrize("controller", every(CONTROLLERS))
def test_no_controller_and_no_seed_changes_the_text(controller, seed):
    for settings in SAMPLINGS.values():
        same_text(seed, settings, drafter="draft_model", policy="expansion", controller=controller.name)


@pytest.mark.parametrize("settings", SAMPLINGS.values(), ids=SAMPLINGS.keys())
def test_the_drafts_of_these_tests_are_often_right_and_often_wrong(settings):
    rounds = []
    for seed in range(4):
        rounds += reply(
            scripted_target(), scripted_draft(), seed=seed, drafter="draft_model", max_tokens=16, **settings
        ).rounds
    assert sum(round.accepted > 0 for round in rounds) >= 5
    assert sum(round.accepted < round.tree.drafted for round in rounds) >= 5


@each_row(
    ("drafter", "name", "family", "settings"),
    covering(
        every(DRAFTERS),
        named(name for name in MODELS if name not in ("scripted", "states") and not name.startswith("llama.cpp")),
        named(["llama", "qwen2"]),
        [pytest.param(settings, id=name) for name, settings in SAMPLINGS.items()],
    ),
)
def test_speculation_never_changes_the_text_of_a_network(drafter, name, family, settings):
    subject = MODELS[name](family, 256)
    whole = similar_decoder(family)
    draft = NestedDecoder(whole.network, 256, (*range(1, whole.layers + 1),), "draft", ())
    said = reply(
        subject.model,
        draft,
        seed=3,
        vocabulary=Letters(NETWORK_V),
        drafter=drafter.name,
        policy="expansion",
        max_tokens=6,
        method_options={"draft_model.leave_at": "0.3"},
        **settings,
    )
    # Its numbers are rounded, so only its own plain decoding says what the native target would have written.
    alone = "native" if name == "native" else "reference"
    assert said.tokens == truth_of_a_network(alone, family, tuple(settings.items()))[:6]
    if drafter.needs_draft_model:
        assert said.ledger.accepted > 0


@cache
def similar_decoder(family: str):
    """Draft models are views of it with caches of their own."""
    return own_decoder(similar_network(family), 256)


@cache
def similar_network(family: str):
    """A draft model's network, which no test changes."""
    return perturbed(shared_network(family), 0.05)


@pytest.mark.parametrize("drafter", ["none", "draft_model", "prompt_lookup", "suffix", "token_recycling", "merge"])
def test_drafters_that_need_no_states_keep_the_text_of_llama_cpps_cache(drafter):
    draft, sampling = ReferenceModel(similar_network("llama"), 256), {"temperature": 0.8, "top_p": 0.9}
    target = MODELS["llama.cpp"]("llama", 256).model
    said = reply(
        target,
        draft,
        seed=3,
        vocabulary=Letters(NETWORK_V),
        drafter=drafter,
        policy="expansion",
        max_tokens=24,
        **sampling,
    )
    assert said.tokens == truth_of_a_network("llama.cpp", "llama", tuple(sampling.items()))


@cache
def truth_of_a_network(name: str, family: str, settings: tuple) -> list[int]:
    return plain_text(MODELS[name](family, 256).model, 24, sampling_of(dict(settings)), 3)


def test_different_seeds_give_different_texts():
    texts = {tuple(reply(scripted_target(), seed=seed, temperature=0.8, max_tokens=20).tokens) for seed in range(5)}
    assert len(texts) == 5


def test_widths_and_depths_do_not_matter():
    expected = plain_text(scripted_target(), TOKENS, Sampling(temperature=0.8), 5)
    for width, depth, nodes in itertools.product((1, 3), (1, 4), (0, 1, 7, 30)):
        said = reply(
            scripted_target(),
            scripted_draft(),
            seed=5,
            drafter="draft_model",
            policy="expansion",
            width=width,
            depth=depth,
            nodes=nodes,
            temperature=0.8,
            max_tokens=TOKENS,
        )
        assert said.tokens == expected


# ---------------------------------------------------------------------------------------------- drafters


def speculate(drafter, sampling, count=30, rule=None, policy=None, target=None, budget=None):
    speculator = Speculator(
        target or scripted_target(),
        drafter,
        make_policy(policy or TREE_POLICIES["expansion"], **({} if policy else {"widths": "3,2,1"})),
        rule or make_rule(ACCEPTANCE_RULES["follow"]),
        Always(budget or Budget(12, 3, 3)),
    )
    return speak(speculator, count, context_for(sampling))


def always_wrong(sampling):
    """Knows the text and proposes anything else."""
    truth = plain_text(scripted_target(), 80, sampling)

    def guess(tree, node, width, context):
        right = truth[len(context.history) - len(PROMPT) + tree.depths[node]]
        return [Guess((right + 1 + i) % V) for i in range(width)]

    return Proposing(guess)


def all_the_same(tree, node, width, context):
    return [Guess(context.root)] * width


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.8)], ids=["greedy", "warm"])
def test_a_drafter_that_is_always_wrong_costs_rounds_and_nothing_else(sampling):
    text, rounds = speculate(always_wrong(sampling), sampling)
    assert text == plain_text(scripted_target(), 30, sampling)
    assert len(rounds) == 30
    assert all(round.tree.drafted > 0 and round.accepted == 0 for round in rounds)


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.8)], ids=["greedy", "warm"])
def test_a_drafter_that_repeats_itself_changes_nothing(sampling):
    text, _ = speculate(Proposing(all_the_same), sampling)
    assert text == plain_text(scripted_target(), 30, sampling)


@each_row("settings", [{}, SAMPLINGS["warm"], SAMPLINGS["everything"]], ids=["greedy", "warm", "all"])
@each_row("policy", every(TREE_POLICIES))
def test_a_draft_model_that_is_the_target_is_always_right(policy, settings):
    """Greedy because both take the same token; above it because the draft draws with the target's own noise."""
    sampling = sampling_of(settings)
    drafter = make_drafter(DRAFTERS["draft_model"], scripted_target())
    text, rounds = speculate(drafter, sampling, policy=policy, budget=Budget(5, 5, 1))
    assert text == plain_text(scripted_target(), 30, sampling)
    assert all(round.accepted == round.tree.drafted for round in rounds)
    assert len(rounds) <= 15, "a policy that learns what nodes cost may plan fewer of them at first"


def test_uncoupled_drafts_are_right_less_often():
    """What coupling is for; also the control that the test above does not accept whatever it is given."""
    accepted = {}
    for drawing in ("coupled", "top"):
        said = reply(
            scripted_target(),
            scripted_target(),
            drafter="draft_model",
            width=1,
            temperature=1.3,
            max_tokens=80,
            method_options={"draft_model.drawing": drawing},
        )
        accepted[drawing] = said.ledger.acceptance_rate
    assert accepted["coupled"] > 0.9
    assert accepted["top"] < 0.8


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.8)], ids=["greedy", "warm"])
def test_several_proposers_of_one_token_share_its_node(sampling):
    knowing = make_drafter(DRAFTERS["draft_model"], scripted_target())
    guessing = make_drafter(DRAFTERS["draft_model"], scripted_draft())
    together = Together(guessing, knowing, make_drafter(DRAFTERS["prompt_lookup"]))
    speculator = Speculator(
        scripted_target(), together, AllOfThem(), make_rule(ACCEPTANCE_RULES["follow"]), Always(Budget(99, 2, 2))
    )
    text, rounds = speak(speculator, 30, context_for(sampling))
    assert text == plain_text(scripted_target(), 30, sampling)
    assert all(round.accepted == 2 for round in rounds)
    assert any(len(round.tree.draws(ROOT)) > len(round.tree.children(ROOT)) for round in rounds)
    for tree in (round.tree for round in rounds):
        assert len({tree.tokens[child] for child in tree.children(ROOT)}) == len(tree.children(ROOT))


@pytest.mark.parametrize("token", [-1, V, V + 7])
def test_a_token_that_does_not_exist_is_refused_and_the_chat_goes_on(token):
    conversation = converse(scripted_target(), scripted_draft(), drafter="draft_model", max_tokens=20, temperature=0.8)
    good = conversation.speculator.drafter
    asked = 0

    def sometimes(tree, node, width, context):
        nonlocal asked
        asked += 1
        return [Guess(token if asked == 5 else 1, proposer="wild")]

    conversation.speculator.drafter = Proposing(sometimes)
    with pytest.raises(ProposalError, match="wild proposed token"):
        collect(conversation.reply(PROMPT, 7))
    conversation.speculator.drafter = good
    expected = plain_text(scripted_target(), 20, Sampling(temperature=0.8))
    assert collect(conversation.reply(PROMPT, 7)).tokens == expected
