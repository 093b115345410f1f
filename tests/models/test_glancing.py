"""Glancing: so many tokens are shown as a share of what was wrong, and what is shown is what is to be guessed."""

from __future__ import annotations

import pytest
import torch
from contracts.random_networks import random_network

from specchat.models.draft_heads.falcon import Falcon, FalconSizes, shown_entries
from specchat.models.draft_heads.head import Batch, SharedWeights

D, TAPS, TEXTS, LENGTH, WORDS, STEPS = 32, (0, 2), 3, 40, 5, 4


def made(block):
    sizes = FalconSizes(D, TAPS, inner=24, heads=4, kv_heads=2, head_dim=8, width=16, block=block)
    generator = torch.Generator().manual_seed(1)
    table, head = torch.randn(WORDS, D, generator=generator), torch.randn(WORDS, D, generator=generator)
    shared = SharedWeights(lambda tokens: table[tokens], torch.arange(WORDS), head)
    return random_network("falcon", sizes, shared, generator).requires_grad_(False)


def some_texts():
    """Texts of which all is drafted but the beginning of the first and the end of the second."""
    generator = torch.Generator().manual_seed(2)
    return Batch(
        features=torch.randn(TEXTS, LENGTH, D, generator=generator),
        tokens=torch.randint(0, WORDS, (TEXTS, LENGTH), generator=generator),
        first=torch.tensor([7, 3, 3]),
        last=torch.tensor([LENGTH - 2, LENGTH - 15, LENGTH - 2]),
        likeliest=torch.zeros(TEXTS, LENGTH, 1, dtype=torch.int64),
        log_p=torch.zeros(TEXTS, LENGTH, 1),
        rest=torch.zeros(TEXTS, LENGTH),
    )


def missed(network, batch):
    """How many tokens of the first blocks are guessed wrongly, text by text: the Hamming distance."""
    places = LENGTH - STEPS
    found = torch.zeros(TEXTS, dtype=torch.int64)
    for step, states in enumerate(network.states(batch.features, batch.tokens, network.sizes.block), 1):
        said = network.logits(states).argmax(-1)
        for text in range(TEXTS):
            for place in range(int(batch.first[text]), places):
                if place + step <= batch.last[text]:
                    found[text] += said[text, place] != batch.tokens[text, place + step + 1]
    return found


class Noting:
    """A network that notes what it is shown."""

    def __init__(self, network):
        self._network = network

    def __getattr__(self, name):
        return getattr(self._network, name)

    def states(self, fused, tokens, steps, shown=None):
        self.shown = shown
        return self._network.states(fused, tokens, steps, shown)


@pytest.mark.parametrize("block", [2, 3])
@pytest.mark.parametrize("share", [0.1, 0.4])
def test_of_each_text_a_share_of_the_wrong_tokens_is_shown(block, share):
    network, batch = made(block), some_texts()
    noted = Noting(network)
    generator = torch.Generator().manual_seed(0)
    Falcon.learning_states(noted, batch.features, batch, torch.arange(WORDS), STEPS, share, generator)
    shown = noted.shown
    assert shown.shape == (TEXTS, LENGTH - STEPS, block)
    assert shown.sum(dim=(1, 2)).tolist() == (share * missed(network, batch)).long().tolist()
    assert not shown[~batch.drafted(1, LENGTH - STEPS)].any()
    assert missed(network, batch).min() > 10, "there is something to show"


@pytest.mark.parametrize("block", [2, 3, 4])
def test_what_is_shown_are_neighbours_from_the_first_entry_of_a_block_on_and_never_its_last(block):
    places = torch.rand(TEXTS, 30, generator=torch.Generator().manual_seed(1)) < 0.8
    counts = torch.tensor([0, 11, 3])
    shown = shown_entries(places, counts, block, torch.Generator().manual_seed(2))
    assert shown.sum(dim=(1, 2)).tolist() == counts.tolist()
    assert not shown[~places].any()
    assert not shown[..., -1].any()
    assert not (shown[..., 1:] & ~shown[..., :-1]).any(), "no gaps"
    lengths = set(shown[1].sum(dim=1).tolist())
    assert lengths == {0, 1} if block == 2 else max(lengths) > 1


def test_no_more_is_shown_than_blocks_can_take():
    shown = shown_entries(torch.ones(1, 5, dtype=torch.bool), torch.tensor([99]), 2, torch.Generator())
    assert shown.sum() == 5


@pytest.mark.parametrize("block", [2, 3])
def test_shown_is_the_true_state_with_the_true_token_and_nothing_else_changes(block):
    network, batch, place = made(block), some_texts(), 9
    fused, tokens = batch.features[:1], batch.tokens[:1]
    shown = torch.zeros(1, LENGTH - STEPS, block, dtype=torch.bool)
    shown[0, place, 0] = True
    found = torch.stack(network.states(fused, tokens, STEPS, shown))[:, 0]

    def with_entry(states, token):
        """As if the first entry of the block were that which is to be guessed."""
        at, other, texts = place + 1 - block, fused.clone(), tokens.clone()
        other[0, at] = fused[0, at + block] if states else fused[0, at]
        texts[0, at + 1] = tokens[0, at + 1 + block] if token else tokens[0, at + 1]
        return torch.stack(network.states(other, texts, STEPS))[:, 0]

    torch.testing.assert_close(found[:, place], with_entry(states=True, token=True)[:, place])
    for half in (with_entry(states=True, token=False), with_entry(states=False, token=True)):
        assert not torch.allclose(found[:, place], half[:, place], atol=1e-4)
    plain = torch.stack(network.states(fused, tokens, STEPS))[:, 0]
    others = torch.arange(LENGTH - STEPS) != place
    assert torch.equal(found[:, others], plain[:, others])
    assert not torch.allclose(found[1, place], plain[1, place], atol=1e-4), "the next guess of the block sees it"
