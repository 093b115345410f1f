"""The early head learns what the later layers add, and from then on names the target's tokens more often."""

from __future__ import annotations

import random

import pytest
import torch
from contracts.pass_requests import requested

from specchat.core.tree import Guess, TokenTree
from specchat.decoding import early_pruning as early_head
from specchat.decoding.early_pruning import EarlyHead, low_rank_bytes
from tests.models.test_decoder import V, decoder, network


def readings(count, seed, layers):
    """Passes over chains of random tokens, with the states of these layers."""
    generator, model = random.Random(seed), decoder(network("llama"))
    for _ in range(count):
        tokens = generator.choices(range(V), k=30)
        tree = TokenTree(tokens[0], V)
        for node, token in enumerate(tokens[1:]):
            tree.add(node, Guess(token))
        model.prefill(())
        yield model.read(tree.freeze(), request=requested(taps=layers))


def agreement(head, layer):
    """How often the early head's likeliest token is the target's."""
    found = []
    for reading in readings(10, 99, (layer - 1,)):
        found.append(head.logits(reading.taps[layer - 1]).argmax(dim=1) == reading.logits.argmax(dim=1))
    return float(torch.cat(found).float().mean())


def test_after_enough_nodes_it_names_the_targets_token_more_often(monkeypatch):
    monkeypatch.setattr(early_head, "_SHRINKAGE", 1e-3)  # these states are small and have no outliers
    head = EarlyHead(decoder(network("llama")), 2)
    assert head.taps == {1, 2}
    untrained = agreement(head, 2)
    for reading in readings(40, 1, head.taps):
        head.learn(reading)
    assert agreement(head, 2) > untrained + 0.1


@pytest.mark.parametrize("wide", [True, False])
def test_where_states_are_wide_or_memory_is_limited_a_map_of_low_rank_is_learnt(monkeypatch, wide):
    monkeypatch.setattr(early_head, "_SHRINKAGE", 1e-3)
    monkeypatch.setattr(early_head, "_RANK", 24)
    target = decoder(network("llama"))
    monkeypatch.setattr(early_head, "_LARGEST_STATE", target.hidden_size - 1 if wide else target.hidden_size)
    head, whole = EarlyHead(target, 2, low_rank=not wide), EarlyHead(target, 2)
    assert head.taps == {1, 2}
    untrained = agreement(head, 2)
    for reading in readings(40, 1, head.taps):
        head.learn(reading)
        whole.learn(reading)
    assert agreement(head, 2) > untrained + 0.1
    states = torch.randn(200, target.hidden_size)
    added = head.logits(states) - target.head(states)
    assert added.abs().max() > 0.1
    changed = _change(head, target, states)
    assert torch.linalg.matrix_rank(changed - changed.mean(0), rtol=1e-4) <= 24
    if not wide:
        changed = _change(whole, target, states)
        assert torch.linalg.matrix_rank(changed - changed.mean(0), rtol=1e-4) > 24


def _change(head, target, states):
    """What the map adds to states: those that the head is given, less those that went in."""
    given = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(target, "head", lambda hidden: given.append(hidden) or hidden)
        head.logits(states)
    return given[0] - states


def test_the_memory_of_a_map_of_low_rank_grows_with_the_width_alone():
    assert low_rank_bytes(4096) < 40e6
    assert low_rank_bytes(8192) < 2.1 * low_rank_bytes(4096)
    full = 2 * 8 * 4096**2  # the sums of a full map
    assert low_rank_bytes(4096) < full / 6


def test_with_few_nodes_it_is_the_targets_own_head():
    target = decoder(network("llama"))
    head = EarlyHead(target, 1)
    for reading in readings(5, 1, head.taps):
        head.learn(reading)
    states = torch.randn(3, target.hidden_size)
    assert torch.equal(head.logits(states), target.head(states))


@pytest.mark.parametrize(("layer", "learns"), [(3, True), (1, False)])
def test_states_are_not_asked_for_where_nothing_is_learnt(layer, learns):
    assert EarlyHead(decoder(network("llama")), layer, learns).taps == frozenset()


def test_learning_ends(monkeypatch):
    monkeypatch.setattr(early_head, "_MOST_ROWS", 60)
    head = EarlyHead(decoder(network("llama")), 1)
    for reading in readings(3, 1, head.taps):
        head.learn(reading)
    assert head.taps == frozenset()
