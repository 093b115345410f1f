"""Trained networks draft what they were trained to: a tree's chain says what unrolling it says at the same place."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from contracts.models import V, shared_network
from contracts.tiny_networks import tiny_trained

from specchat.core.states import HiddenStateSink, TextStates
from specchat.core.tree import ROOT, Guess, TokenTree
from specchat.models.backends.transformers_model import ReferenceModel
from specchat.models.cpu_kernels.kernels import native_works
from specchat.models.cpu_kernels.network import NativeNetwork
from specchat.models.decoder.decoder import Decoder
from specchat.models.decoder.shape import Shape
from specchat.models.draft_heads import loading, methods, selector
from specchat.models.draft_heads.head import SharedWeights
from specchat.models.draft_heads.loading import load_network
from specchat.models.weights.weight_source import TensorSource
from specchat.training.learning_network import LearningNetwork
from specchat.training.limits import FORMS
from tests.training.training_kit import unroll

TEXT = [3, 5, 9, 5, 3, 7, 9, 2, 5, 3, 11, 4, 8, 1]
STEPS = 3


@pytest.mark.parametrize("anchor", [1, 5, 10])
@pytest.mark.parametrize("method", [*methods("head"), *FORMS[1:]])
def test_a_chain_says_what_unrolling_says_at_its_place(monkeypatch, method, anchor):
    monkeypatch.setattr(selector, "CANDIDATES", V)  # unrolled, every token's pair is scored
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


def read_by(drafting, states, text):
    """What a network guesses after a text and after a token behind it."""
    drafting.take(states)
    drafting.start(text)
    tree = TokenTree(text[-1], V)
    return [drafting.read(tree, [ROOT]).logits.clone(), drafting.read(tree, [tree.add(ROOT, Guess(5))]).logits.clone()]


@pytest.fixture(params=["torch", "native"])
def targets(request):
    """Three places over the same weights, each with a cache of its own."""
    network = shared_network("llama")
    if request.param == "native":
        if not native_works():
            pytest.skip("the kernels cannot be built here")
        first = Decoder(NativeNetwork(Shape.of(network.config), TensorSource(network.state_dict()), "int8"), 64)
    else:
        first = ReferenceModel(network, 64)
    second = first.with_new_cache()
    return first, second, second.with_new_cache()


@pytest.mark.parametrize("method", methods("head"))
def test_places_draft_from_weights_that_are_loaded_once_and_go_with_the_last(targets, monkeypatch, method):
    loads, load = [], loading.load_network
    monkeypatch.setattr(loading, "load_network", lambda *given: loads.append(given) or load(*given))
    trained = tiny_trained(method, targets[0])
    places = [LearningNetwork(target, trained, 4096) for target in targets]
    shared = weakref.ref(places[0]._drafting.given.weights)
    assert len(loads) == 1
    assert all(place._drafting.given.weights is shared() for place in places)
    assert len({place._drafting.given.tokens.within([3]).rows.data_ptr() for place in places}) == 1
    fewer = LearningNetwork(targets[1], trained, 4)
    assert len(loads) == 2, "other frequent tokens are another head"
    assert fewer._drafting.given.weights is not shared()
    del places, fewer
    gc.collect()
    assert shared() is None


@pytest.mark.parametrize("method", methods("head"))
def test_what_a_place_guesses_depends_on_its_own_text_and_what_it_learnt_alone(targets, method):
    trained, taken = tiny_trained(method, targets[0]), []
    layers = LearningNetwork(targets[0], trained, 4096).layers
    other_text = [1, 8, 4, 11, 3, 5, 2, 9, 7, 3]
    for text in (TEXT, other_text):
        targets[0].prefill(text, tap=HiddenStateSink(layers, taken.append))
        taken[-1] = TextStates(0, tuple(text[:-1]), {at: rows[:-1].clone() for at, rows in taken[-1].layers.items()})
    alone = read_by(LearningNetwork(targets[0], trained, 4096), taken[0], TEXT)
    one, other = (LearningNetwork(target, trained, 4096) for target in targets[1:])
    read_by(other, taken[1], other_text)
    assert all(torch.equal(*said) for said in zip(read_by(one, taken[0], TEXT), alone, strict=True))

    learner = other._learning()
    with torch.no_grad():
        for tensor in learner.network.parameters():
            tensor.add_(0.05 * torch.randn(tensor.shape, generator=torch.Generator().manual_seed(1)))
    other._renew(learner)
    changed = read_by(other, taken[0], TEXT)
    assert other._drafting.given.weights is not one._drafting.given.weights
    assert not torch.equal(changed[0][:, :8], alone[0][:, :8])
    assert all(torch.equal(*said) for said in zip(read_by(one, taken[0], TEXT), alone, strict=True))
    other.restore_state(b"")
    back = read_by(other, taken[0], TEXT)
    assert other._drafting.given.weights is one._drafting.given.weights
    assert torch.equal(back[0][:, :8], alone[0][:, :8])
