"""The semi-autoregressive network: what entries of a block see, how many passes a tree takes, and its LSTM."""

from __future__ import annotations

import math

import pytest
import torch
from contracts.kit import Letters, collect, converse
from contracts.models import V, shared_network
from contracts.random_networks import random_network
from contracts.tiny_networks import all_tiny_trained, trained_resources

from specchat.models.backends.transformers_model import ReferenceModel
from specchat.models.draft_heads.falcon import FalconSizes, Lstm
from specchat.models.draft_heads.head import SharedWeights

D, TAPS, LENGTH = 32, (0, 2), 14
PROMPT = [3, 5, 9, 5, 3, 7, 9, 2, 5, 3, 11, 4]


def made(block):
    sizes = FalconSizes(D, TAPS, inner=24, heads=4, kv_heads=2, head_dim=8, width=16, block=block)
    generator = torch.Generator().manual_seed(1)
    table, head = torch.randn(61, D, generator=generator), torch.randn(20, D, generator=generator)
    shared = SharedWeights(lambda tokens: table[tokens], torch.arange(20), head)
    network = random_network("falcon", sizes, shared, generator)
    with torch.no_grad():
        network.layer.o.weight *= 10.0  # attention counts
    return network.requires_grad_(False)


def a_text():
    generator = torch.Generator().manual_seed(2)
    return torch.randn(1, LENGTH, D, generator=generator), torch.randint(0, 61, (1, LENGTH), generator=generator)


def alike(before, after):
    """Which rows of (n, d) states did not change."""
    return torch.isclose(before, after, rtol=1e-4, atol=1e-5).all(dim=1).tolist()


@pytest.mark.parametrize("block", [2, 3])
def test_every_entry_of_a_block_sees_all_of_it_and_no_later_block(block):
    """What entry j of the block before place t says is guess j + 1: all depend on its last entry, none on the next."""
    network, (fused, tokens), steps = made(block), a_text(), 2 * block
    before = network.states(fused, tokens, steps)
    for entry in range(3, LENGTH - steps - 1):
        other = fused.clone()
        other[0, entry] += 1.0
        after = network.states(other, tokens, steps)
        for step in range(block):
            same = alike(before[step][0], after[step][0])
            assert not same[entry], "the first entry of the block that ends here sees the last"
            assert all(same[:entry]), "blocks that end before it do not"


@pytest.mark.parametrize("block", [2, 3])
def test_a_later_block_is_seen_by_itself_alone(block):
    network, (fused, tokens), steps = made(block), a_text(), 3 * block
    before = network.states(fused, tokens, steps)
    place = 3
    for token in range(place + 2, place + 1 + 2 * block):
        other = tokens.clone()
        other[0, token] = (other[0, token] + 1) % 61
        after = network.states(fused, other, steps)
        same = alike(*(torch.stack(found)[:, 0, place] for found in (before, after)))
        first = (token - place - 2) // block + 1  # the block that the token is an entry of, the text's being block 0
        assert same == [step // block < first for step in range(steps)]


def test_full_attention_in_a_block_is_not_causal_attention():
    """The control: with causal attention the first entry of a block would not see the second."""
    network, (fused, tokens) = made(2), a_text()
    relaxed = network.states(fused, tokens, 2)[0][0]
    rows = network.rows(
        network.lstm(
            network.entries(fused[:, :-1], network.of_tokens(network.shared.embed(tokens[:, 1:]))),
            network.lstm.empty(1),
        )
    )
    causal = network.layer.over_text(rows)[0]
    for place in range(1, LENGTH - 2):
        assert not torch.allclose(relaxed[place], causal[place - 1], rtol=1e-2, atol=1e-2)
    last = network.states(fused, tokens, 2)[1][0]
    torch.testing.assert_close(last[1:], causal[1 : LENGTH - 2], rtol=1e-4, atol=1e-4)  # the last sees all in both


@pytest.mark.parametrize(("depth", "passes"), [(1, 1), (2, 1), (3, 2), (4, 2), (5, 3)])
def test_a_tree_takes_a_pass_for_every_two_depths(depth, passes):
    target = ReferenceModel(shared_network("llama"), 256)
    conversation = converse(
        target, vocabulary=Letters(V), resources=trained_resources(trained=all_tiny_trained(target)), drafter="falcon",
        policy="eagle2", controller="fixed", nodes=4 * depth, depth=depth, width=2, max_tokens=30,
    )  # fmt: skip
    rounds = collect(conversation.reply(PROMPT, 7)).rounds
    deep = [round for round in rounds if max(round.tree.depths) == depth]
    assert deep
    assert {round.draft_passes for round in deep} == {passes}
    assert passes == math.ceil(depth / 2)


def test_the_lstm_is_that_of_torch_and_goes_on_from_any_of_its_memories():
    torch.manual_seed(3)
    theirs, ours = torch.nn.LSTM(12, 8, num_layers=2, batch_first=True), Lstm(12, 8, 2)
    with torch.no_grad():
        for layer in range(2):
            ours.inputs[layer].weight.copy_(getattr(theirs, f"weight_ih_l{layer}"))
            ours.back[layer].weight.copy_(getattr(theirs, f"weight_hh_l{layer}"))
            bias = getattr(theirs, f"bias_ih_l{layer}") + getattr(theirs, f"bias_hh_l{layer}")
            ours.bias[layer, 0].copy_(bias)
    entries = torch.randn(3, 7, 12)
    said, (last_said, last_kept) = theirs(entries)
    memory = ours(entries, ours.empty(3))
    torch.testing.assert_close(memory[:, :, -1, 0], said)
    torch.testing.assert_close(memory[:, -1, :, 0].transpose(0, 1), last_said)
    torch.testing.assert_close(memory[:, -1, :, 1].transpose(0, 1), last_kept)
    torch.testing.assert_close(ours(entries[:, 4:], memory[:, 3]), memory[:, 4:])
