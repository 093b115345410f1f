"""Networks without some heads and channels: exact, ranked as gradients say, and better so than otherwise."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from contracts.models import native_decoder, native_is_here, own_decoder, shared_network, source_of, tiny_network

from specchat.core.drafting_networks import Ranking
from specchat.core.tree import ROOT, Guess, TokenTree
from specchat.models.cpu_kernels.network import NativeNetwork
from specchat.models.decoder.decoder import Decoder
from specchat.models.decoder.differentiable_layer import Gates, layer_output
from specchat.models.decoder.pruning import KeptUnits, PrunableFile, loss_gradient
from specchat.models.decoder.shape import Shape
from specchat.models.decoder.weight_check import prepared
from specchat.models.model_loading import own_network

CPU, TEXT = torch.device("cpu"), [1, 7, 30, 7, 2, 59, 14, 7, 30, 11, 5, 5, 41, 3, 3, 8]
FAMILIES = ["llama", "qwen2", "qwen3", "smollm3", "gemma3_text"]


def prunable(network, precision="float32") -> PrunableFile:
    def narrower(shape, source):
        return own_network(shape, source, precision, CPU, "torch")[0]

    shape = Shape.of(network.config)
    return PrunableFile(own_decoder(network, 512), lambda: (source_of(network), shape), narrower)


def random_ranking(network, seed=0) -> Ranking:
    shape, generator = Shape.of(network.config), torch.Generator().manual_seed(seed)
    sizes = ((shape.layers, shape.heads), (shape.layers, shape.inner))
    return Ranking.of(*(torch.rand(*size, generator=generator) for size in sizes))


def emptied(network, kept: KeptUnits):
    """The whole network, in which what is not kept passes nothing on."""
    network = copy.deepcopy(network)
    head_dim = Shape.of(network.config).head_dim
    for index, layer in enumerate(network.get_decoder().layers):
        with torch.no_grad():
            o, down = layer.self_attn.o_proj.weight, layer.mlp.down_proj.weight
            left_out = torch.ones(o.shape[1] // head_dim, dtype=torch.bool)
            left_out[kept.heads[index]] = False
            o[:, left_out.repeat_interleave(head_dim)] = 0
            silent = torch.ones(down.shape[1], dtype=torch.bool)
            silent[kept.channels[index]] = False
            down[:, silent] = 0
    return network


def logits_of(model, text) -> torch.Tensor:
    model.prefill(text[:-1])
    return model.read(TokenTree(text[-1], model.vocab_size).freeze()).after(ROOT)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_pruned_network_is_the_whole_one_with_the_rest_silent(family):
    network = shared_network(family)
    ranking, file = random_ranking(network), prunable(network)
    kept = KeptUnits.of(ranking, file.whole, 0.3)
    model = file.pruned(ranking, 0.3)
    assert model.network.shape.inner == 32 < file.whole.inner
    assert (model.network.shape.heads, model.network.shape.kv_heads) == (2, 2)
    with torch.no_grad():
        expected = emptied(network, kept)(input_ids=torch.tensor([TEXT]), use_cache=False).logits[0, -1]
        whole = network(input_ids=torch.tensor([TEXT]), use_cache=False).logits[0, -1]
    torch.testing.assert_close(logits_of(model, TEXT), expected, atol=2e-4, rtol=2e-4)
    assert not torch.allclose(expected, whole, atol=0.1)


def test_with_nothing_left_out_it_is_the_whole_network():
    network = shared_network("qwen2")
    model = prunable(network).pruned(random_ranking(network), 0.0)
    assert torch.equal(logits_of(model, TEXT), logits_of(own_decoder(network, 512), TEXT))


def test_heads_that_share_nothing_lose_their_keys_and_values_too():
    network = shared_network("llama")
    shape = Shape.of(network.config)
    kept = KeptUnits.of(random_ranking(network), shape, 0.5)
    assert torch.equal(kept.kv_heads, torch.tensor([[0, 1]] * shape.layers)), "shared ones stay"
    assert all({head // 2 for head in heads.tolist()} == {0, 1} for heads in kept.heads), "every group keeps one"
    alone = Shape(**{**vars(shape), "kv_heads": shape.heads})
    kept = KeptUnits.of(Ranking.of(torch.tensor([[4.0, 1, 3, 2]] * 3), torch.rand(3, 48)), alone, 0.5)
    assert torch.equal(kept.kv_heads, kept.heads)
    assert kept.heads.tolist() == [[0, 2]] * 3
    assert kept.shape(alone).kv_heads == 2


def importance_by_weights(network, texts):
    """|Σ w · dL/dw| of what reads heads and channels out, by autograd through the whole network, text by text."""
    network = copy.deepcopy(network)
    shape = Shape.of(network.config)
    heads, channels = torch.zeros(shape.layers, shape.heads), torch.zeros(shape.layers, shape.inner)
    for text in texts:
        network.zero_grad()
        logits = network(input_ids=text[None], use_cache=False).logits[0, :-1]
        F.cross_entropy(logits, text[1:], reduction="sum").backward()
        for index, layer in enumerate(network.get_decoder().layers):
            o, down = layer.self_attn.o_proj.weight, layer.mlp.down_proj.weight
            heads[index] += (o * o.grad).view(len(o), shape.heads, -1).sum(dim=(0, 2)).abs()
            channels[index] += (down * down.grad).sum(dim=0).abs()
    return heads.detach(), channels.detach()


@pytest.mark.parametrize("family", FAMILIES)
def test_the_ranking_is_that_of_weights_times_their_gradients(family):
    network = shared_network(family)
    texts = torch.tensor([TEXT, TEXT[::-1], [(7 * i + 3) % 61 for i in range(len(TEXT))]])
    *pieces, found = prunable(network).by_taylor(texts.tolist())
    heads, channels = importance_by_weights(network, texts)
    expected = Ranking.of(heads, channels)
    assert len(pieces) == 2 * len(heads) + 1
    assert torch.equal(found.heads, expected.heads)
    agreeing = (found.channels == expected.channels).float().mean()
    assert float(agreeing) > 0.95, "but for near-ties"


def loss(model, texts) -> float:
    """Mean loss of a decoder on texts."""
    total = []
    for text in texts:
        tree = TokenTree(text[0], model.vocab_size)
        for node, token in enumerate(text[1:-1]):
            tree.add(node, Guess(token))
        model.prefill([])
        total.append(F.cross_entropy(model.read(tree.freeze()).logits, torch.tensor(text[1:])))
    return float(torch.stack(total).mean())


def test_removing_what_matters_least_costs_less_than_removing_by_size_or_by_chance():
    """On texts that the network writes itself, of which other ones were measured.

    Every third channel and every other head has large weights and passes next to nothing on.
    """
    network = tiny_network("llama", seed=5)
    head_dim = Shape.of(network.config).head_dim
    for layer in network.get_decoder().layers:
        with torch.no_grad():
            layer.mlp.gate_proj.weight[::3] *= 3.0
            layer.mlp.down_proj.weight[:, ::3] *= 0.02
            for head in (1, 2):
                layer.self_attn.q_proj.weight[head * head_dim :][:head_dim] *= 3.0
                layer.self_attn.o_proj.weight[:, head * head_dim :][:, :head_dim] *= 0.02
    texts = network.generate(torch.arange(3, 35)[:, None], max_length=24, do_sample=False, pad_token_id=0).tolist()
    file = prunable(network)
    *_, taylor = file.by_taylor(texts[::2])
    losses = {
        name: loss(file.pruned(ranking, 0.3), texts[1::2])
        for name, ranking in (
            ("taylor", taylor),
            ("size", file.by_magnitude()),
            *((f"chance {seed}", random_ranking(network, seed)) for seed in range(3)),
        )
    }
    whole = loss(own_decoder(network, 512), texts[1::2])
    assert losses.pop("taylor") - whole < 0.2 * (min(losses.values()) - whole), losses


def test_the_gradient_of_the_head_is_that_of_autograd():
    network = shared_network("llama")
    shape, source = Shape.of(network.config), prepared(source_of(network), Shape.of(network.config))
    hidden, texts = torch.randn(2, 5, shape.hidden), torch.tensor([[1, 2, 3, 4, 5], [5, 4, 3, 2, 1]])
    leaf = hidden.clone().requires_grad_()
    logits = F.rms_norm(leaf, (shape.hidden,), source.dense("norm"), shape.epsilon) @ source.dense("head").t()
    F.cross_entropy(logits[:, :-1].flatten(0, 1), texts[:, 1:].flatten(), reduction="sum").backward()
    torch.testing.assert_close(loss_gradient(shape, source, hidden, texts), leaf.grad, atol=1e-5, rtol=1e-4)


def test_closed_gates_are_heads_and_channels_that_are_gone():
    network = shared_network("llama")
    shape, source = Shape.of(network.config), prepared(source_of(network), Shape.of(network.config))
    kept = KeptUnits.of(random_ranking(network), shape, 0.3)
    hidden = torch.randn(1, 6, shape.hidden)
    gates = Gates(torch.zeros(1, shape.heads), torch.zeros(1, shape.inner))
    gates.heads[:, kept.heads[0]] = gates.channels[:, kept.channels[0]] = 1.0
    emptied_source = prepared(source_of(emptied(network, kept)), shape)
    expected = layer_output(shape, emptied_source, 0, hidden, Gates.open(shape, 1))
    torch.testing.assert_close(layer_output(shape, source, 0, hidden, gates), expected)


@pytest.mark.skipif(not native_is_here(), reason="no native kernels here")
def test_it_runs_in_the_native_kernels_with_fewer_bytes():
    network = shared_network("llama")
    whole = native_decoder(network, 512)
    assert isinstance(whole.network, NativeNetwork)
    file = prunable(network, "int8")
    file = PrunableFile(file.target, file.opened, lambda shape, source: NativeNetwork(shape, source, "int8"))
    ranking = random_ranking(network)
    model = file.pruned(ranking, 0.3)
    assert isinstance(model, Decoder)
    assert model.network.nbytes < whole.network.nbytes
    kept = KeptUnits.of(ranking, file.whole, 0.3)
    expected = logits_of(own_decoder(emptied(network, kept), 512), TEXT)
    assert F.cosine_similarity(logits_of(model, TEXT), expected, dim=0) > 0.99
