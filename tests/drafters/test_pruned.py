"""Drafting with a narrower network: what is kept for the next session, and when importance is measured."""

from __future__ import annotations

import dataclasses
import time

import pytest
import torch
from contracts.kit import PROMPT, Letters, collect, converse
from contracts.models import V, own_decoder, shared_network, source_of, tiny_network
from contracts.tiny_networks import PrunedOfNothing
from safetensors.torch import load, save

from specchat.core.drafting_networks import Ranking
from specchat.core.tree import TokenTree
from specchat.drafters.choice import choose
from specchat.drafters.parts import PairResources, Parts
from specchat.errors import CombinationError, UsageError
from specchat.models.decoder.pruning import PrunableFile
from specchat.models.decoder.shape import Shape
from specchat.models.model_loading import own_network
from specchat.settings import Settings

CHAIN = {"drafter": "pruned", "policy": "chain", "nodes": 3, "depth": 3, "max_tokens": 80, "temperature": 0.0}


def pruned_file(network) -> PrunableFile:
    def narrower(shape, source):
        return own_network(shape, source, "float32", torch.device("cpu"), "torch")[0]

    shape = Shape.of(network.config)
    return PrunableFile(own_decoder(network, 512), lambda: (source_of(network), shape), narrower)


def conversed(network=None, **settings):
    """A conversation whose target's weights can be pruned, and its drafter."""
    network = network or shared_network("llama")
    target = own_decoder(network, 512)
    resources = PairResources(prunable=pruned_file(network))
    conversation = converse(target, None, Letters(V), resources, **{**CHAIN, **settings})
    return conversation, conversation.speculator.drafter


def test_a_narrower_network_drafts_and_the_text_stays():
    conversation, drafter = conversed(max_tokens=24)
    said = collect(conversation.reply(PROMPT, 7))
    plain, _ = conversed(controller="off", max_tokens=24)
    assert said.tokens == collect(plain.reply(PROMPT, 7)).tokens
    assert said.ledger.draft_passes == drafter.passes > 0
    assert drafter._drafting._model.network.shape.inner == 32


@pytest.mark.parametrize(
    ("groups", "sizes"),
    [("heads", (2, 48, 64)), ("channels", (4, 32, 64)), ("dimensions", (4, 48, 32)),
     ("heads, channels+dimensions", (2, 32, 32))],
)  # fmt: skip
def test_the_groups_that_are_named_are_left_out_and_the_text_stays(groups, sizes):
    network = tiny_network("llama", hidden_size=64)
    settings = {"method_options": {"pruned.groups": groups, "pruned.ratio": 0.5}, "max_tokens": 24}
    conversation, drafter = conversed(network, **settings)
    said = collect(conversation.reply(PROMPT, 7))
    plain, _ = conversed(network, controller="off", max_tokens=24)
    assert said.tokens == collect(plain.reply(PROMPT, 7)).tokens
    assert said.ledger.drafted > 0
    shape = drafter._drafting._model.network.shape
    assert (shape.heads, shape.inner, shape.hidden) == sizes


@pytest.mark.parametrize("groups", ["", "heads+chanels", "layers"])
def test_groups_that_there_are_not_are_refused_with_what_there_is(groups):
    with pytest.raises(UsageError, match=r"pruned\.groups = .* (did you mean 'channels'|known: heads, channels, dim)"):
        choose("pruned", Settings(method_options={"pruned.groups": groups}))


def test_after_another_ratio_was_set_it_is_learnt_for_the_new_network_and_the_old_one_is_remembered():
    network = tiny_network("llama", hidden_size=64)

    def drafter_with(state, **options):
        given = {"pruned.recover": 2, "pruned.samples": 4, **options}
        conversation, drafter = conversed(network, method_options=given, max_tokens=130)
        drafter.restore_state(state)
        collect(conversation.reply(PROMPT, 7))
        pieces = 0
        while drafter.idle(time.monotonic()):
            pieces += 1
        return drafter, pieces

    first, pieces = drafter_with(b"")
    (sizes,) = first._recovered
    first._recovered[sizes] = {(0, "o"): (torch.ones(8, 64), torch.ones(64, 8))}  # it may have been dropped
    again, repeated = drafter_with(first.save_state())
    second, anew = drafter_with(first.save_state(), **{"pruned.groups": "heads+dimensions", "pruned.ratio": 0.5})
    assert repeated == 0 < anew < pieces, "the ranking holds for every network"
    assert len(second._recovered) == 2
    assert second._recovered.keys() > again._recovered.keys() == {sizes}
    assert again.save_state() == first.save_state()


def test_importance_is_measured_while_idle_and_the_ranking_kept_for_the_next_session():
    conversation, drafter = conversed()
    collect(conversation.reply(PROMPT, 7))
    assert not drafter.measured
    assert drafter.save_state() == b""
    pieces = 1
    while drafter.idle(time.monotonic()):
        pieces += 1
    assert drafter.measured
    assert pieces == 8, "each of three layers twice, the head, and the ranking"
    assert not drafter.idle(time.monotonic() + 1)
    _, another = conversed()
    another.restore_state(drafter.save_state())
    another.start(PROMPT)
    drafter.start(PROMPT)
    tree = TokenTree(PROMPT[-1], V).freeze()
    mine, theirs = (one._drafting._model.read(tree).logits for one in (drafter, another))
    assert torch.equal(mine, theirs)
    assert another.save_state() == drafter.save_state()
    another.restore_state(b"")
    assert not another.measured


def test_what_was_learnt_back_is_kept_with_the_ranking_and_the_text_stays():
    learning = {"method_options": {"pruned.recover": 2, "pruned.samples": 4}, "max_tokens": 130}
    conversation, drafter = conversed(**learning)
    text = collect(conversation.reply(PROMPT, 7)).tokens
    while drafter.idle(time.monotonic() + 60):
        pass
    drafter._recovered[drafter._sizes] = {(0, "o"): (torch.ones(8, 32), 0.5 * torch.ones(32, 8))}  # if it was dropped
    _, another = conversed(**learning)
    another.restore_state(drafter.save_state())
    assert another.save_state() == drafter.save_state()
    tree, said = TokenTree(PROMPT[-1], V).freeze(), []
    for options in (learning, {**learning, "method_options": {}}):
        conversation, one = conversed(**options)
        one.restore_state(drafter.save_state())
        one.start(PROMPT)
        said.append(one._drafting._model.read(tree).logits)
        assert collect(conversation.reply(PROMPT, 7)).tokens == text
    assert not torch.equal(*said)
    broken = load(drafter.save_state()) | {f"up/{drafter._sizes}/0/o": torch.full((32, 8), torch.nan)}
    with pytest.raises(ValueError, match="no matrix of numbers"):
        another.restore_state(save(broken))


def test_it_is_measured_within_a_reply_only_where_the_controller_allows_it():
    texts = []
    for controller, measured in (("search", True), ("fixed", False)):
        conversation, drafter = conversed(controller=controller, method_options={"search.share": 1.0})
        texts.append(collect(conversation.reply(PROMPT, 7)).tokens)
        assert drafter.measured is measured
    assert texts[0] == texts[1]


def test_samples_are_the_last_texts_of_the_chat():
    _, drafter = conversed(method_options={"pruned.samples": 2})
    drafter._text = list(range(63))
    assert drafter._samples() == []
    assert not drafter.idle(time.monotonic() + 1), "too little was written"
    drafter._text = list(range(70))
    assert drafter._samples() == [list(range(6, 70))]
    drafter._text = list(range(300))
    assert drafter._samples() == [list(range(172, 236)), list(range(236, 300))]


def test_a_state_that_does_not_fit_is_refused():
    _, drafter = conversed()
    shape = Shape.of(shared_network("llama").config)
    good = Ranking.of(*(torch.rand(*of) for of in ((shape.layers, shape.heads), (shape.layers, shape.inner), (32,))))
    fewer = dataclasses.replace(good, heads=good.heads[:1])
    wider = dataclasses.replace(good, dimensions=torch.arange(33))
    doubled = dataclasses.replace(good, channels=torch.zeros_like(good.channels))
    for wrong in (b"[1, 2]", save({"other": torch.ones(2)}), *(save(vars(one)) for one in (fewer, doubled, wider))):
        with pytest.raises(ValueError, match=r"ranking|another network"):
            drafter.restore_state(wrong)
    drafter.restore_state(save(vars(good)))
    assert drafter.measured


def test_where_a_narrower_network_cannot_be_made_it_is_refused_with_what_works():
    target = own_decoder(shared_network("llama"), 512)
    with pytest.raises(CombinationError, match=r"own decoder; nearest that works: drafter 'layer_skip'"):
        Parts(target).build(choose("pruned", Settings()))
    assert Parts(target, resources=PairResources(prunable=PrunedOfNothing(target))).build(choose("pruned", Settings()))
