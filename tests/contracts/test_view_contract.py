"""What every `Model` promises about twins and views: the same weights, a cache of its own, and only what is left in."""

from __future__ import annotations

import copy

import pytest
import torch
from contracts.kit import random_tree
from contracts.models import BUILDERS, HIDDEN, V, each_flexible_model, shared_network
from contracts.pass_requests import requested
from rows import each_row

from specchat.core.tree import TokenTree
from specchat.errors import ModelError
from specchat.models.backends.transformers_network import without_parts
from specchat.models.decoder.network import SubLayers

PREFIX = [1, 7, 30, 7, 2, 59, 14, 7, 30, 11, 5, 5, 41]
CLOSE = {"atol": 2e-4, "rtol": 2e-4}

LEFT_OUT = {
    "a layer": {"layers": (0, 2)},
    "the first attention": {"skip_attention": (0,)},
    "two halves": {"skip_attention": (1,), "skip_mlp": (2,)},
    "an MLP and a layer": {"layers": (1, 2), "skip_mlp": (1,)},
    "everything": {"layers": ()},
}


def rounds(model, prefix=PREFIX):
    """Logits of a prompt's end and of two rounds, with rows to be moved in between."""
    model.prefill(prefix)
    said = []
    for turn in range(2):
        tree = random_tree(V, 9, turn, root=3 + turn)
        said.append(model.read(tree).logits)
        model.keep(tree.path(len(tree) - 1))
    return torch.cat(said)


def silenced(family, layers=None, skip_attention=(), skip_mlp=()):
    """A network in which these halves of layers say nothing, because what they end in is zero."""
    network = copy.deepcopy(shared_network(family))
    for index, layer in enumerate(network.get_decoder().layers):
        whole = layers is not None and index not in layers
        with torch.no_grad():
            if whole or index in skip_attention:
                layer.self_attn.o_proj.weight.zero_()
            if whole or index in skip_mlp:
                layer.mlp.down_proj.weight.zero_()
    return network


@each_flexible_model
def test_a_view_with_nothing_left_out_says_what_its_target_says_to_the_bit(subject):
    expected = rounds(subject.model)
    assert torch.equal(rounds(subject.model.view()), expected)
    assert torch.equal(rounds(subject.model.with_new_cache()), expected)
    everything = range(subject.model.layers)
    assert torch.equal(rounds(subject.model.view(layers=everything).view()), expected)


@each_flexible_model
def test_twins_and_views_have_caches_and_counters_of_their_own(subject):
    model = subject.model
    twin, view = model.with_new_cache(), model.view(skip_mlp=[0])
    model.prefill(PREFIX)
    assert twin.cached(PREFIX) == view.cached(PREFIX) == 0
    assert twin.counters.rows == view.counters.rows == 0
    before = rounds(subject.fresh(), PREFIX[:5])
    torch.testing.assert_close(rounds(twin, PREFIX[:5]), before, **CLOSE)
    rounds(view, PREFIX[3:])
    assert model.cached(PREFIX) == len(PREFIX)


@each_flexible_model
def test_it_knows_its_sizes_and_embeds_as_its_first_layer_is_fed(subject):
    model = subject.model
    assert model.layers == subject.layers
    assert model.view(layers=()).layers == subject.layers, "layers keep their numbers"
    rows = model.embed([3, 7, 3])
    assert rows.shape == (3, model.hidden_size)
    if subject.embed is not None:
        assert model.hidden_size == HIDDEN
        torch.testing.assert_close(rows, torch.stack([subject.embed(token) for token in (3, 7, 3)]))
    assert model.head(torch.zeros(2, model.hidden_size)).shape == (2, V)


@each_flexible_model
def test_rows_of_the_head_give_the_logits_of_these_tokens(subject):
    model, tokens = subject.model, [7, 3, 7, V - 1]
    drawn = torch.randn(3, model.hidden_size, generator=torch.Generator().manual_seed(1))
    states = torch.nn.functional.rms_norm(drawn * 2, (model.hidden_size,), eps=1e-5)
    rows = model.head_rows(tokens)
    assert rows.dtype == torch.float32
    torch.testing.assert_close(states @ rows.t(), model.head(states)[:, tokens].float(), rtol=0.03, atol=0.03)


@each_row("family", ["llama", "gemma3_text"])
@each_row("left_out", LEFT_OUT.values(), ids=LEFT_OUT.keys())
def test_what_is_left_out_adds_nothing(build, left_out, family):
    view = build(shared_network(family), 256).view(**left_out)
    expected = rounds(build(silenced(family, **left_out), 256))
    torch.testing.assert_close(rounds(view), expected, **CLOSE)
    assert not torch.allclose(expected, rounds(build(shared_network(family), 256)), atol=0.1), "it makes a difference"


def test_what_is_left_out_has_the_bits_of_weights_that_are_zero():
    if "native" not in BUILDERS:
        pytest.skip("no native kernels here")
    build = BUILDERS["native"]
    for left_out in LEFT_OUT.values():
        view = build(shared_network("llama"), 256).view(**left_out)
        assert torch.equal(rounds(view), rounds(build(silenced("llama", **left_out), 256)))


@pytest.mark.parametrize("left_out", LEFT_OUT.values(), ids=LEFT_OUT.keys())
def test_only_what_is_computed_counts(build, left_out):
    network = shared_network("llama")
    model = build(network, 256)
    view = model.view(**left_out)
    kept = set(left_out.get("layers", range(3)))
    halves = 2 * len(kept) - len(kept & set(left_out.get("skip_attention", ())))
    halves -= len(kept & set(left_out.get("skip_mlp", ())))
    rounds(view)
    assert view.counters.node_layers == view.counters.rows * halves / 2
    assert model.counters.rows == 0


def test_views_of_views_leave_out_more(build):
    model = build(shared_network("llama"), 256)
    once = model.view(layers=(0, 2), skip_mlp=(0,))
    assert torch.equal(rounds(model.view(layers=(0, 2)).view(skip_mlp=(0,))), rounds(once))
    assert torch.equal(rounds(once.with_new_cache()), rounds(once.with_new_cache()))


def test_states_of_a_view_have_the_numbers_of_the_whole(build):
    model = build(shared_network("llama"), 256)
    view = model.view(layers=(0, 2))
    view.prefill(PREFIX)
    taps = view.read(TokenTree(3, V).freeze(), request=requested(taps=range(3))).taps
    assert torch.equal(taps[0], taps[1]), "layer 1 adds nothing"
    assert not torch.equal(taps[1], taps[2])
    model.prefill(PREFIX)
    own = model.read(TokenTree(3, V).freeze(), request=requested(taps=[0])).taps[0]
    assert torch.equal(taps[0], own)


@each_flexible_model
def test_a_layer_that_is_not_there_cannot_be_left_out(subject):
    for wrong in ({"layers": [9]}, {"skip_attention": [9]}, {"skip_mlp": [9]}):
        with pytest.raises(AssertionError, match="no layer 9"):
            subject.model.view(**wrong)


def test_a_network_of_another_form_is_refused_by_name():
    network = copy.deepcopy(shared_network("llama"))
    layer = network.get_decoder().layers[1]
    layer.other = layer.mlp
    del layer.mlp
    with pytest.raises(ModelError, match="LlamaDecoderLayer have no 'mlp'"):
        without_parts(network, SubLayers.of_all(3).without(None, (), (1,)))
