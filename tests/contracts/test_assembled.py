"""Methods that need one capability each, assembled from settings on every model path: the text stays the target's."""

from __future__ import annotations

import dataclasses
import itertools
from functools import cache

import pytest
import torch
from contracts.covering import covering, named
from contracts.kit import PROMPT, Letters, collect, converse, reply
from contracts.models import BUILDERS, HIDDEN, V, shared_network
from contracts.smallest_drafters import Stateful
from contracts.table_plugins import PLUGINS
from contracts.tiny_networks import trained_resources
from contracts.trained_folders import trained_folder
from safetensors.torch import load_file

from specchat.config.trained_drafters import TrainedDrafters
from specchat.core.context import Context
from specchat.core.noise import Noise
from specchat.core.round import Reason
from specchat.core.sampling import Sampling
from specchat.core.tree import ROOT, DrawKind, TokenTree
from specchat.errors import CombinationError

pytestmark = pytest.mark.usefixtures("plugins_listed")

TREE = {"policy": "expansion", "controller": "fixed", "nodes": 6, "depth": 3, "width": 2, "max_tokens": 12}


class Backwards(Letters):
    """The same characters as `Letters`, numbered from the other end."""

    def token_bytes(self, token):
        return super().token_bytes(self._size - 1 - token)

    def encode(self, text):
        return [self._size - 1 - token for token in super().encode(text)]


@pytest.fixture
def resources(tmp_path):
    weight = shared_network("llama").get_output_embeddings().weight.detach().clone()
    made = trained_folder(tmp_path / "head", {"weight": weight}, "trained")
    other = trained_folder(tmp_path / "constant", {"token": torch.tensor(3)}, "constant")
    return trained_resources(Letters(V), trained=TrainedDrafters("tiny", (made, other)))


DRAFTERS_OF_TESTS = [
    {"drafter": "stateful"},
    {"drafter": "trained", "method_options": {"trained.layer": 1}},
    {"drafter": "learning"},
    {"drafter": "constant"},
    {"drafter": "riding", "width": 1},
    {"drafter": "riding", "width": 1, "method_options": {"riding.adapted": True}},
    {"drafter": "self_drafting"},
    {"drafter": "part_of_cache"},
    {"drafter": "nested", "width": 1},
    {"drafter": "cross_vocabulary"},
    {"drafter": "merge", "method_options": {"merge.of": "cross_vocabulary,suffix"}},
    {"drafter": "merge", "method_options": {"merge.of": "stateful,stateful2,riding", "stateful2.layer": 2}},
    {"drafter": "merge", "method_options": {"merge.of": "self_drafting,suffix"}},
    {"drafter": "first", "method_options": {"first.of": "prompt_lookup(min_ngram=3)+merge(of=suffix+self_drafting)"}},
    {"drafter": "silent", "method_options": {"silent.of": "draft_model(drawing=top)+draft_model(drawing=coupled)"}},
    {"drafter": "merge", "method_options": {"merge.of": "stateful(layer=0)+stateful(layer=2)+riding(length=1)"}},
    {"drafter": "self_drafting", "policy": "drops_some"},
    {"drafter": "self_drafting", "rule": "looks_twice"},
    {"drafter": "merge", "rule": "looks_twice", "method_options": {"merge.of": "self_drafting,suffix"}},
]


def words_of(settings):
    words = [
        settings["drafter"],
        *settings.get("method_options", {}).values(),
        settings.get("policy"),
        settings.get("rule"),
    ]
    return "-".join(str(word) for word in words if word)


@pytest.mark.parametrize(
    ("make_model", "settings", "temperature"),
    covering(
        named(BUILDERS),
        [pytest.param(settings, id=words_of(settings)) for settings in DRAFTERS_OF_TESTS],
        [pytest.param(0.0, id="greedy"), pytest.param(0.8, id="warm")],
    ),
    indirect=["make_model"],
)
def test_what_the_seams_carry_never_changes_the_text(make_model, resources, settings, temperature):
    target, draft = make_model(), make_model()
    if "cross_vocabulary" in named(settings):
        resources = dataclasses.replace(resources, draft_vocabulary=Backwards(V))
    changes = {**TREE, **settings, "temperature": temperature, "max_tokens": 8}
    said = collect(converse(target, draft, resources.vocabulary, resources, **changes).reply(PROMPT, 7))
    assert said.tokens == plain_reply(make_model, temperature)
    assert said.ledger.drafted > 0


@cache
def plain_reply(make_model, temperature):
    return reply(make_model(), controller="off", temperature=temperature, max_tokens=8).tokens


def test_every_plug_in_is_assembled():
    used = {word for settings in DRAFTERS_OF_TESTS for word in words_of(settings).replace(",", "-").split("-")}
    assert set(PLUGINS) <= used


# -------------------------------------------------------------------------------------------- what they were given


def conversed(make_model, resources=None, **settings):
    conversation = converse(make_model(), make_model(), None, resources, **{**TREE, **settings})
    said = collect(conversation.reply(PROMPT, 7))
    return conversation, conversation.speculator, said


def test_a_view_of_the_target_reads_on_its_own_and_is_often_right(make_model):
    conversation, speculator, said = conversed(make_model, drafter="self_drafting")
    model = speculator.drafter.model
    assert model is not conversation.target
    assert 0 < model.counters.node_layers < 3 * model.counters.rows
    assert conversation.target.counters.node_layers == 3 * conversation.target.counters.rows
    assert said.ledger.draft_passes > 0


def test_a_part_of_the_targets_cache_is_not_read_again(make_model):
    prompt = [(7 * i + 3) % V for i in range(60)]
    conversation = converse(make_model(), None, **{**TREE, "drafter": "part_of_cache"})
    collect(conversation.reply(prompt, 7))
    again = [*prompt, 5, 9, 2, 4]
    drafter = conversation.speculator.drafter
    before = drafter.model.counters.rows
    said = collect(conversation.reply(again, 7))
    assert drafter.model.counters.rows - before < 40 + 4 * len(said.rounds), "the prompt came from the target's cache"


def test_riders_without_an_adapter_say_what_a_plain_pass_says_behind_the_path(make_model):
    network = shared_network("llama")
    _, speculator, said = conversed(make_model, drafter="riding", width=1, policy="chain")
    assert all(round.extra_rows == 2 * len(round.tree) for round in said.rounds)
    table, mask = network.get_input_embeddings().weight.detach(), speculator.drafter.mask
    agreed = 0
    for before, following in itertools.pairwise(said.rounds):
        read = [*PROMPT, *said.tokens][: before.start + before.accepted]
        rows = torch.stack([*table[read], mask, mask])
        with torch.no_grad():
            logits = network(inputs_embeds=rows[None], use_cache=False).logits[0, -2:]
        agreed += following.tree.tokens[1:] == logits.argmax(dim=-1).tolist()
    exact = "Native" not in type(getattr(speculator.target, "network", None)).__name__
    assert agreed == len(said.rounds) - 1 if exact else agreed > 0.6 * len(said.rounds)


@pytest.mark.parametrize("drafter", ["self_drafting", "merge"])
def test_the_rule_finds_the_states_and_laws_it_asked_for(make_model, drafter):
    asked = {"drafter": drafter, "method_options": {"merge.of": "self_drafting"}}
    conversation, speculator, said = conversed(make_model, **asked, rule="looks_twice", temperature=0.7)
    rule = speculator.rule
    assert [states.shape for states in rule.states] == [(len(round.tree), HIDDEN) for round in said.rounds]
    drafted = [round for round in said.rounds if round.tree.drafted]
    assert len(rule.laws) == sum(len(round.tree.draws(ROOT)) for round in drafted) > 0
    for token, q in rule.laws:
        assert q.shape == (V,)
        assert float(q.sum()) == pytest.approx(1.0)
        assert float(q[token]) > 0
    assert conversation.losslessness.lossless


def test_the_policy_drops_nodes_where_it_said_it_would_look(make_model):
    _, speculator, said = conversed(make_model, drafter="self_drafting", policy="drops_some", nodes=9, width=3)
    assert set(speculator.policy.looked) == {0}
    assert len(speculator.policy.looked) == sum(round.tree.drafted > 0 for round in said.rounds)
    assert any(Reason.PRUNED in round.verdict.reasons for round in said.rounds)
    assert all(set(round.reading.taps) == {0} for round in said.rounds)


def test_a_nested_engine_draws_from_the_law_it_names(make_model):
    _, speculator, said = conversed(make_model, drafter="nested", width=1, rule="multi_step", temperature=0.8)
    draws = [draw for round in said.rounds for node in range(len(round.tree)) for draw in round.tree.draws(node)]
    assert draws
    assert all(draw.guess.kind is DrawKind.IID for draw in draws)
    inner = speculator.drafter.model.with_new_cache()
    for round in said.rounds[:3]:
        text = [*PROMPT, *said.tokens][: round.start]
        for node in range(len(round.tree)):
            for draw in round.tree.draws(node):
                whole = [*text, *round.tree.path_tokens(node)]
                inner.prefill(whole[:-1])
                alone = TokenTree(whole[-1], V).freeze()
                context = Context(whole, len(PROMPT), V, Sampling(temperature=0.8))
                expected = context.law_after(alone, ROOT, inner.read(alone).after(ROOT)).dense(V)
                inner.keep(())
                torch.testing.assert_close(draw.guess.q.double(), expected.double(), atol=1e-4, rtol=1e-3)


def test_members_and_drafters_have_noise_of_their_own(make_model):
    parts = []
    with pytest.MonkeyPatch.context() as patch:
        made = Stateful.__init__
        patch.setattr(Stateful, "__init__", lambda s, o, p: (parts.append(p), made(s, o, p))[1])
        converse(make_model(), None, drafter="merge", method_options={"merge.of": "stateful,stateful2"})
        converse(make_model(), None, drafter="stateful")
    noises = {part.noise(Noise(3)) for part in parts}
    assert len(noises) == 3
    assert Noise(3) not in noises


def test_a_trained_drafter_is_built_from_the_weights_that_are_named_or_the_newest(make_model, resources, tmp_path):
    newest = resources.trained.choose("trained")
    older = trained_folder(tmp_path / "older", load_file(newest.weights), "trained")
    both = dataclasses.replace(resources, trained=TrainedDrafters("tiny", (newest, older)))
    for name, expected in (("", newest), ("older", older)):
        _, speculator, _ = conversed(make_model, both, drafter="trained", method_options={"trained.weights": name})
        assert speculator.drafter.trained is expected


@pytest.mark.parametrize("drafter", ["trained", "merge"])
def test_a_drafter_without_its_weights_is_refused_with_the_reason_and_what_works(make_model, drafter):
    settings = {"drafter": drafter, "method_options": {"merge.of": "suffix,trained"}}
    with pytest.raises(CombinationError, match=r"drafter 'trained' needs weights .* nearest that works: drafter 'suff"):
        conversed(make_model, **settings)
    conversation = converse(make_model(), None, max_tokens=24)
    with pytest.raises(CombinationError):
        conversation.change(conversation.settings.but(settings))
    assert collect(conversation.reply(PROMPT, 7)).tokens
