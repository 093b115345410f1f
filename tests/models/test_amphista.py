"""Heads that attend to each other: each knows of all others, and one call answers for a whole tree."""

from __future__ import annotations

import pytest
import torch
from contracts.kit import Letters, collect, converse
from contracts.models import V, shared_network
from contracts.random_networks import random_network
from contracts.tiny_networks import sizes_for, tiny_trained, trained_resources

from specchat.config.trained_drafters import TrainedDrafters
from specchat.models.backends.transformers_model import ReferenceModel
from specchat.models.draft_heads.head import SharedWeights

D, K = 32, 3


def made(method):
    shared = SharedWeights(torch.nn.Identity(), torch.arange(5), torch.empty(5, D))
    return random_network(method, sizes_for(method, D, 3), shared, torch.Generator().manual_seed(0)).requires_grad_(
        False
    )


@pytest.fixture
def amphista():
    return made("amphista")


def entry():
    return torch.randn(1, D, generator=torch.Generator().manual_seed(1))


def with_heads_in_order(network, order):
    """What each head says, head by head, where they stand in another order."""
    weights = network.blocks.weight.data
    network.blocks.weight.data = weights.unflatten(0, (K, D))[order].flatten(0, 1)
    said = network.ahead(entry())
    network.blocks.weight.data = weights
    back = torch.tensor(order).argsort()
    return said[:, back]


def with_an_auto_embedding_of_one(network, monkeypatch):
    """Let every head attend to itself alone: the mask of the attention is its diagonal."""
    among = network.auto_embedding.among
    monkeypatch.setattr(network.auto_embedding, "among", lambda states: among(states.unsqueeze(-2)).squeeze(-2))


def test_what_a_head_says_depends_on_the_order_of_the_heads(amphista):
    assert (with_heads_in_order(amphista, [2, 0, 1]) - amphista.ahead(entry())).abs().amax(-1).min() > 1e-3


@pytest.mark.parametrize("control", ["medusa", "no code of the depth"])
def test_heads_apart_and_heads_without_a_code_do_not_know_their_order(control):
    network = made("medusa" if control == "medusa" else "amphista")
    if control != "medusa":
        network.code.zero_()
    torch.testing.assert_close(with_heads_in_order(network, [2, 0, 1]), network.ahead(entry()))


def test_a_head_that_attends_to_itself_alone_says_something_else(amphista, monkeypatch):
    together = amphista.ahead(entry())
    with_an_auto_embedding_of_one(amphista, monkeypatch)
    assert (amphista.ahead(entry()) - together).abs().amax(-1).min() > 1e-2


@pytest.mark.parametrize("changed", range(K))
def test_every_head_knows_of_those_before_it_and_of_those_behind_it(amphista, monkeypatch, changed):
    def differ():
        before = amphista.ahead(entry())
        amphista.code[changed] += 1
        after = amphista.ahead(entry())
        amphista.code[changed] -= 1
        return [not torch.equal(one, other) for one, other in zip(before[0], after[0], strict=True)]

    assert differ() == [True] * K
    with_an_auto_embedding_of_one(amphista, monkeypatch)
    assert differ() == [head == changed for head in range(K)]


def test_the_first_adaptation_layer_reads_states_and_the_second_tokens_too(amphista):
    def read(tokens):
        seen = []

        def over(layer, states):
            seen.append(states)
            return layer.over_text(states)

        amphista.entries(entry()[None], tokens, over)
        return seen

    one, other = read(torch.zeros(1, 1, D)), read(torch.ones(1, 1, D))
    assert len(one) == 2
    assert torch.equal(one[0], other[0])
    assert not torch.equal(one[1], other[1])


@pytest.mark.parametrize(("method", "passes"), [("amphista", 1), ("medusa", 1), ("selector", 1), ("clover", K)])
def test_one_call_serves_all_depths_of_a_tree(method, passes):
    """And clover, whose deeper guesses depend on those before, takes one for each."""
    target = ReferenceModel(shared_network("llama"), 256)
    resources = trained_resources(trained=TrainedDrafters("tiny", (tiny_trained(method, target),)))
    conversation = converse(
        target, vocabulary=Letters(V), resources=resources, drafter=method, policy="comb", controller="fixed",
        nodes=6, depth=K, width=2, max_tokens=24,
    )  # fmt: skip
    rounds = collect(conversation.reply([3, 5, 9, 5, 3, 7], 7)).rounds
    deep = [round.draft_passes for round in rounds[1:] if max(round.tree.depths) == K]
    assert len(deep) > 4
    assert set(deep) == {passes}
