"""Trained networks draft what they were trained to: a tree's chain says what unrolling it says at the same place."""

from __future__ import annotations

import pytest
import torch
from contracts.models import shared_network
from contracts.tiny_networks import tiny_trained

from specchat.core.states import HiddenStateSink, TextStates
from specchat.core.tree import ROOT, Guess, TokenTree
from specchat.models.backends.transformers_model import ReferenceModel
from specchat.models.draft_heads import methods
from specchat.models.draft_heads.head import SharedWeights
from specchat.models.draft_heads.loading import load_network
from specchat.training.learning_network import LearningNetwork
from specchat.training.limits import FORMS
from tests.training.training_kit import unroll

TEXT = [3, 5, 9, 5, 3, 7, 9, 2, 5, 3, 11, 4, 8, 1]
STEPS = 3


@pytest.mark.parametrize("anchor", [1, 5, 10])
@pytest.mark.parametrize("method", [*methods("head"), *FORMS[1:]])
def test_a_chain_says_what_unrolling_says_at_its_place(method, anchor):
    target = ReferenceModel(shared_network("llama"), 64)
    trained = tiny_trained(method, target)
    network = load_network(
        trained.method, trained.options, trained.weights, lambda tokens: SharedWeights.of(target, tokens)
    )
    taken: list[TextStates] = []
    target.prefill(TEXT, tap=HiddenStateSink(frozenset(network.sizes.taps), taken.append))
    features = torch.stack([taken[0].layers[layer] for layer in network.sizes.taps], dim=1)
    tokens = torch.tensor([TEXT])
    unrolled = unroll(network, features[None], tokens, STEPS)

    drafting = LearningNetwork(target, trained, 4096)
    drafting.take(
        TextStates(0, tuple(TEXT[: anchor + 1]), {layer: rows[: anchor + 1] for layer, rows in taken[0].layers.items()})
    )
    assert drafting.begin(TEXT[: anchor + 2])
    tree, node = TokenTree(TEXT[anchor + 1], target.vocab_size), ROOT
    for step, expected in enumerate(unrolled, 1):
        said = drafting.read(tree, [node])
        known = len(network.shared.tokens)
        assert said.possible[:known].tolist() == network.shared.tokens.tolist()
        torch.testing.assert_close(said.logits[0, :known], expected[0, anchor], rtol=1e-4, atol=1e-4)
        if step < STEPS:
            node = tree.add(node, Guess(TEXT[anchor + 1 + step]))


@pytest.mark.parametrize("method", [*methods("head"), *FORMS[1:]])
def test_a_text_that_is_read_round_by_round_is_the_text_read_at_once(method):
    target = ReferenceModel(shared_network("llama"), 64)
    trained = tiny_trained(method, target)
    taken: list[TextStates] = []
    layers = LearningNetwork(target, trained, 4096).layers
    target.prefill(TEXT, tap=HiddenStateSink(layers, taken.append))
    said = []
    for ends in ([3, 4, 6, 9, len(TEXT)], [len(TEXT)]):
        drafting = LearningNetwork(target, trained, 4096)
        for first, end in zip([1, *ends], ends, strict=False):
            rows = {layer: states[first - 1 : end - 1] for layer, states in taken[0].layers.items()}
            drafting.take(TextStates(first - 1, tuple(TEXT[first - 1 : end - 1]), rows))
            assert drafting.begin(TEXT[:end])
        tree = TokenTree(TEXT[-1], target.vocab_size)
        said += [[drafting.read(tree, [ROOT]), drafting.read(tree, [tree.add(ROOT, Guess(5))])]]
    for one, other in zip(*said, strict=True):
        known = round(2 / 3 * target.vocab_size)
        torch.testing.assert_close(one.logits[:, :known], other.logits[:, :known], rtol=1e-4, atol=1e-4)
