"""A frozen target says of masks what the target itself says of its extra rows."""

from __future__ import annotations

import pytest
import torch
from contracts.models import shared_network
from contracts.pass_requests import requested

from specchat.core.request import Adapter, Entry, ExtraRow
from specchat.core.tree import TokenTree
from specchat.models.backends.transformers_model import ReferenceModel
from specchat.models.decoder.shape import Shape
from specchat.models.decoder.weight_check import prepared
from specchat.models.weights.families import FAMILIES
from specchat.models.weights.weight_source import TensorSource
from specchat.training.mask_learning import FrozenTarget

TEXT = [1, 7, 30, 7, 2, 59, 14, 7, 30, 11, 5, 5, 41]
PLACES = [3, 12, 7]


def frozen(family):
    network = shared_network(family)
    shape = Shape.of(network.config)
    source = prepared(TensorSource(network.state_dict(), FAMILIES[family]), shape)
    return FrozenTarget(shape, source, torch.float32, torch.device("cpu"))


def drawn(*shape, seed=0):
    return 0.3 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def adapter(shape, up=1.0):
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    sizes = {"q": (queries, shape.hidden), "k": (keys, shape.hidden), "v": (keys, shape.hidden)}
    sizes["o"] = (shape.hidden, queries)
    return {
        (layer, name): (drawn(3, inputs, seed=layer), up * drawn(outputs, 3, seed=9 + layer))
        for layer in range(shape.layers)
        for name, (outputs, inputs) in sizes.items()
    }


@pytest.mark.parametrize("first", [None, 1], ids=["masks", "streams"])
@pytest.mark.parametrize("up", [0.0, 1.0], ids=["embeddings alone", "adapted"])
@pytest.mark.parametrize("family", ["llama", "gemma3_text", "qwen3"])
def test_masks_say_what_riders_of_the_target_say(family, up, first):
    network, target = shared_network(family), frozen(family)
    masks, added = drawn(3, target.shape.hidden, seed=4), adapter(target.shape, up)
    model = ReferenceModel(network, 256)
    embedded = model.embed(TEXT)[None]
    entry = None if first is None else Entry(first, drawn(target.shape.hidden, target.shape.hidden, seed=6))
    states = target.states(embedded, torch.tensor([PLACES]), masks, added, entry)[0]
    with torch.no_grad():
        for place, found in zip(PLACES, states, strict=True):
            model.prefill(())
            model.prefill(TEXT[:place])
            extra_rows = [
                ExtraRow(0, mask, number - 1 if number else None, Adapter(added), entry)
                for number, mask in enumerate(masks)
            ]
            layer = target.shape.layers - 1
            reading = model.read(TokenTree(TEXT[place], 64).freeze(), request=requested(extra_rows, taps=[layer]))
            torch.testing.assert_close(found, reading.extra_row_states[layer], atol=2e-4, rtol=2e-4)


@pytest.mark.parametrize("first", [0, 2])
def test_gradients_reach_masks_and_additions_alone(first):
    target = frozen("llama")
    masks, added = drawn(2, target.shape.hidden).requires_grad_(), adapter(target.shape)
    factors = [factor.requires_grad_() for (layer, _), pair in added.items() for factor in pair if layer >= first]
    embedded = drawn(2, 9, target.shape.hidden).requires_grad_()
    entry = Entry(first, drawn(target.shape.hidden, target.shape.hidden).requires_grad_()) if first else None
    target.states(embedded, torch.tensor([[2, 5], [8, 0]]), masks, added, entry).square().sum().backward()
    assert entry is None or entry.matrix.grad.abs().sum() > 0
    assert masks.grad.abs().sum() > 0
    assert all(factor.grad.abs().sum() > 0 for factor in factors)
    assert embedded.grad is None, "the text is read without a gradient"
