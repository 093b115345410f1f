"""Eagle's layer with masks: packed groups say what groups say by themselves, and a tree takes one pass."""

from __future__ import annotations

import pytest
import torch
from contracts.kit import Letters, collect, converse
from contracts.models import V, shared_network
from contracts.random_networks import random_network
from contracts.tiny_networks import all_tiny_trained, trained_resources

from specchat.models.backends.transformers_model import ReferenceModel
from specchat.models.draft_heads.head import SharedWeights
from specchat.models.draft_heads.parallel_spec import ParallelSpecSizes
from tests.training.training_kit import unroll

D, TAPS, MASKS, PLACES = 32, (0, 2), 3, 6
SIZES = ParallelSpecSizes(D, TAPS, inner=24, heads=4, kv_heads=2, head_dim=8, masks=MASKS)
PROMPT = [3, 5, 9, 5, 3, 7, 9, 2, 5, 3, 11, 4]


@pytest.fixture
def network():
    generator = torch.Generator().manual_seed(1)
    table = torch.randn(61, D, generator=generator)
    head = torch.randn(20, D, generator=generator)
    made = random_network(
        "parallel_spec", SIZES, SharedWeights(lambda tokens: table[tokens], torch.arange(20), head), generator
    )
    with torch.no_grad():
        made.o.weight *= 10.0  # attention counts
    return made.requires_grad_(False)


@pytest.fixture
def text():
    generator = torch.Generator().manual_seed(2)
    length = PLACES + 1 + MASKS
    tokens = torch.randint(0, 61, (1, length), generator=generator)
    return torch.randn(1, length, len(TAPS), D, generator=generator), tokens


def group(place):
    """The entry at a place and its masks: (which mask, or None for the entry; position)."""
    return [(None, place), *((mask, place + 1 + mask) for mask in range(MASKS))]


def one_after_another(network, features, tokens, rows):
    """(1 + MASKS, H) what the last of these rows say, in plain attention: each sees all rows before it."""
    layer, fused, embedded = network, network.fused(features[0]), network.shared.embed(tokens[0])
    inputs = torch.stack([fused[at] if mask is None else network.mask_states[mask] for mask, at in rows])
    taken = torch.stack([embedded[at + 1] if mask is None else network.mask_tokens[mask] for mask, at in rows])
    each = [
        layer.before_attention(inputs[row : row + 1], layer.of_tokens(taken[row : row + 1]), torch.tensor([at]))
        for row, (_, at) in enumerate(rows)
    ]
    residual, queries, keys, values = (torch.cat(parts) for parts in zip(*each, strict=True))
    states = []
    for row in range(len(rows) - 1 - MASKS, len(rows)):
        mixed = []
        for head in range(SIZES.heads):
            shared = head * SIZES.kv_heads // SIZES.heads
            scores = keys[: row + 1, shared] @ queries[row, head] / SIZES.head_dim**0.5
            mixed.append(scores.softmax(0) @ values[: row + 1, shared])
        states.append(layer.after_attention(residual[row], torch.cat(mixed)))
    return network.logits(torch.stack(states))


def test_packed_groups_say_what_each_says_by_itself(network, text):
    packed = torch.stack(unroll(network, *text, 1 + MASKS), dim=2)[0]
    assert packed.shape == (PLACES, 1 + MASKS, 20)
    for place in range(PLACES):
        text_before = [(None, at) for at in range(place)]
        alone = one_after_another(network, *text, [*text_before, *group(place)])
        torch.testing.assert_close(packed[place], alone, rtol=1e-4, atol=1e-4)
        if place:  # the control: the masks of the group before it are seen too
            mixed = one_after_another(network, *text, [*text_before[:-1], *group(place - 1), *group(place)])
            assert not torch.allclose(packed[place], mixed, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("mask", range(MASKS))
def test_a_mask_is_seen_from_its_own_depth_on(network, text, mask):
    before = unroll(network, *text, 1 + MASKS)
    network.mask_states[mask] += torch.randn(D, generator=torch.Generator().manual_seed(3))
    after = unroll(network, *text, 1 + MASKS)
    for depth, (one, other) in enumerate(zip(before, after, strict=True)):
        same = torch.allclose(one, other, rtol=1e-4, atol=1e-5)
        assert same == (depth <= mask), "the first depth has no mask"


def passes_of_rounds(method, depth):
    """Of rounds that drafted so deep, with trees of several branches."""
    target = ReferenceModel(shared_network("llama"), 256)
    conversation = converse(
        target, vocabulary=Letters(V), resources=trained_resources(trained=all_tiny_trained(target)), drafter=method,
        policy="best_first", controller="fixed", nodes=3 * depth, depth=depth, width=2, max_tokens=24,
    )  # fmt: skip
    rounds = collect(conversation.reply(PROMPT, 7)).rounds
    deep = [round for round in rounds if max(round.tree.depths) == depth]
    assert deep
    assert any(len(set(round.tree.parents)) < len(round.tree.parents) for round in deep), "they branch"
    return {round.draft_passes for round in deep}


def test_a_tree_of_several_depths_takes_one_pass():
    assert passes_of_rounds("parallel_spec", 3) == {1}
    assert passes_of_rounds("eagle", 3) == {3}, "the control: a pass for each depth"
