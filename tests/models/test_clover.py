"""Heads in a row: what a deeper head says depends on the tokens that were guessed, through the running state."""

from __future__ import annotations

import pytest
import torch
from contracts.random_networks import random_network
from contracts.tiny_networks import sizes_for

from specchat.models.draft_heads.clover import CloverSizes, TokenAttention
from specchat.models.draft_heads.head import SharedWeights
from tests.training.training_kit import unroll

D, STEPS, HEADS = 32, 3, 4


@pytest.fixture
def clover():
    table = torch.randn(61, D, generator=torch.Generator().manual_seed(4))
    shared = SharedWeights(lambda tokens: table[tokens], torch.arange(20), table[:20])
    sizes = sizes_for("clover", D, 3)
    return random_network("clover", sizes, shared, torch.Generator().manual_seed(0)).requires_grad_(False)


def unrolled(network):
    generator = torch.Generator().manual_seed(2)
    tokens = torch.randint(0, 61, (2, 9), generator=generator)
    return unroll(network, torch.randn(2, 9, 2, D, generator=generator), tokens, STEPS)


def attention():
    network = TokenAttention(D, HEADS, 1e-5).double().requires_grad_(False)
    return network, *torch.randn(2, 5, D, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def test_without_the_guessed_tokens_deeper_heads_change_and_the_first_does_not(clover, monkeypatch):
    first, *deeper = unrolled(clover)
    step = clover.step
    monkeypatch.setattr(clover, "step", lambda running, tokens: step(running, torch.zeros_like(tokens)))
    cut_first, *cut = unrolled(clover)
    assert torch.equal(first, cut_first)
    assert all(bool((one - other).abs().amax(-1).min() > 1e-2) for one, other in zip(deeper, cut, strict=True))
    torch.testing.assert_close(cut[0], cut[1])  # without a token nothing moves on


def test_a_guessed_token_reaches_later_heads_through_the_running_state_alone(clover, monkeypatch):
    """The second head's token reaches the third by the state, which a step without attention does not carry."""

    def moved():
        running = torch.randn(1, D, generator=torch.Generator().manual_seed(3))
        one, other = (clover.step(running, torch.full((1, D), value))[0] for value in (0.5, -0.7))
        last = torch.ones(1, D)
        return not torch.equal(clover.step(one, last)[1], clover.step(other, last)[1])

    assert moved()
    monkeypatch.setattr(clover.guessed, "forward", lambda states, tokens: states)
    assert not moved()


def test_a_tokens_value_is_added_as_far_as_its_key_lies_along_the_query():
    network, states, tokens = attention()
    normed = torch.nn.functional.rms_norm(states, (D,), eps=1e-5) * network.state_norm
    queries, (keys, values) = normed @ network.q.weight.T, (tokens @ network.kv.weight.T).chunk(2, dim=-1)
    expected = states.clone()
    for row in range(len(states)):
        for head in torch.arange(D).view(HEADS, -1):
            query, key = queries[row, head], keys[row, head]
            expected[row, head] += query @ key / (query.norm() * key.norm()) * values[row, head]
    torch.testing.assert_close(network(states, tokens), expected)


def test_how_long_a_key_is_does_not_count_and_how_long_a_value_is_does():
    network, states, tokens = attention()
    added = network(states, tokens) - states
    network.kv.weight[:D] *= 7
    torch.testing.assert_close(network(states, tokens) - states, added)
    network.kv.weight[D:] *= 7
    torch.testing.assert_close(network(states, tokens) - states, 7 * added)


def test_a_token_of_zeros_adds_nothing():
    network, states, tokens = attention()
    assert torch.equal(network(states, torch.zeros_like(tokens)), states)
    assert not torch.equal(network(states, tokens), states)


@pytest.mark.parametrize(("hidden", "heads"), [(32, 4), (23, 1), (30, 2)])
def test_heads_of_the_attention_to_tokens_divide_the_width(hidden, heads):
    assert CloverSizes(hidden, (0,), inner=24, heads=4, kv_heads=2, head_dim=8).token_heads == heads
