"""Networks without some heads and channels: exact, ranked as gradients say, and better so than otherwise."""

from __future__ import annotations

import copy
import dataclasses
from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from contracts.models import V, native_decoder, native_is_here, own_decoder, shared_network, source_of, tiny_network

from specchat.core.drafting_networks import LeftOut, Ranking
from specchat.core.tree import ROOT, Guess, TokenTree
from specchat.models.cpu_kernels.network import NativeNetwork
from specchat.models.decoder.decoder import Decoder
from specchat.models.decoder.differentiable_layer import DifferentiableLayer, Gates
from specchat.models.decoder.pruning import KeptUnits, PrunableFile, first_units, head_loss
from specchat.models.decoder.shape import Shape
from specchat.models.decoder.weight_check import prepared
from specchat.models.model_loading import own_network
from specchat.models.weights.families import FAMILIES as FAMILY

CPU, TEXT = torch.device("cpu"), [1, 7, 30, 7, 2, 59, 14, 7, 30, 11, 5, 5, 41, 3, 3, 8]
FAMILIES = ["llama", "qwen2", "qwen3", "smollm3", "gemma3_text"]
UNITS = LeftOut(heads=0.3, channels=0.3)


def prunable(network, precision="float32") -> PrunableFile:
    def narrower(shape, source):
        return own_network(shape, source, precision, CPU, "torch")[0]

    shape = Shape.of(network.config)
    return PrunableFile(own_decoder(network, 512), lambda: (source_of(network), shape), narrower)


def random_ranking(network, seed=0) -> Ranking:
    shape, generator = Shape.of(network.config), torch.Generator().manual_seed(seed)
    sizes = ((shape.layers, shape.heads), (shape.layers, shape.inner), (shape.hidden,))
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
            if kept.dimensions is not None:
                gone = torch.ones(len(o), dtype=torch.bool)
                gone[kept.dimensions] = False
                o[gone] = down[gone] = network.get_input_embeddings().weight[:, gone] = 0
    return network


def logits_of(model, text) -> torch.Tensor:
    model.prefill(text[:-1])
    return model.read(TokenTree(text[-1], model.vocab_size).freeze()).after(ROOT)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_pruned_network_is_the_whole_one_with_the_rest_silent(family):
    network = shared_network(family)
    ranking, file = random_ranking(network), prunable(network)
    kept = KeptUnits.of(ranking, file.whole, UNITS)
    model = file.pruned(ranking, UNITS)
    assert model.network.shape.inner == 32 < file.whole.inner
    assert (model.network.shape.heads, model.network.shape.kv_heads) == (2, 2)
    with torch.no_grad():
        expected = emptied(network, kept)(input_ids=torch.tensor([TEXT]), use_cache=False).logits[0, -1]
        whole = network(input_ids=torch.tensor([TEXT]), use_cache=False).logits[0, -1]
    torch.testing.assert_close(logits_of(model, TEXT), expected, atol=2e-4, rtol=2e-4)
    assert not torch.allclose(expected, whole, atol=0.1)


@pytest.mark.parametrize("family", FAMILIES)
def test_without_dimensions_it_is_the_whole_network_in_which_they_are_zero(family):
    """Epsilon is so large that a norm's mean over the dimensions that are left would show."""
    network = tiny_network(family, hidden_size=96, rms_norm_eps=0.2)
    ranking, file = random_ranking(network), prunable(network)
    left_out = LeftOut(heads=0.3, dimensions=0.3)
    kept, model = KeptUnits.of(ranking, file.whole, left_out), file.pruned(ranking, left_out)
    assert (model.network.shape.hidden, model.network.shape.inner) == (64, 48)
    with torch.no_grad():
        silent = emptied(network, kept)
        out = silent(input_ids=torch.tensor([TEXT]), use_cache=False, output_hidden_states=True)
        whole = network(input_ids=torch.tensor([TEXT]), use_cache=False).logits[0, -1]
    gone = sorted({*range(96)} - {*kept.dimensions.tolist()})
    assert not torch.stack(out.hidden_states)[..., gone].any(), "nothing is ever written there"
    torch.testing.assert_close(logits_of(model, TEXT), out.logits[0, -1], atol=2e-5, rtol=2e-5)
    assert not torch.allclose(out.logits[0, -1], whole, atol=0.1)


def test_with_nothing_left_out_it_is_the_whole_network():
    network = shared_network("qwen2")
    model = prunable(network).pruned(random_ranking(network), LeftOut())
    assert torch.equal(logits_of(model, TEXT), logits_of(own_decoder(network, 512), TEXT))


def test_groups_that_are_not_named_lose_nothing_where_they_are_no_multiple_of_32():
    shape = dataclasses.replace(Shape.of(shared_network("llama").config), hidden=80, inner=144)
    kept = KeptUnits.of(first_units(shape), shape, LeftOut(heads=0.5))
    assert (kept.shape(shape).hidden, kept.shape(shape).inner) == (80, 144)


def test_heads_that_share_nothing_lose_their_keys_and_values_too():
    network = shared_network("llama")
    shape = Shape.of(network.config)
    kept = KeptUnits.of(random_ranking(network), shape, LeftOut(heads=0.5))
    assert torch.equal(kept.kv_heads, torch.tensor([[0, 1]] * shape.layers)), "shared ones stay"
    assert all({head // 2 for head in heads.tolist()} == {0, 1} for heads in kept.heads), "every group keeps one"
    alone = Shape(**{**vars(shape), "kv_heads": shape.heads})
    ranking = Ranking.of(torch.tensor([[4.0, 1, 3, 2]] * 3), torch.rand(3, 48), torch.rand(32))
    kept = KeptUnits.of(ranking, alone, LeftOut(heads=0.5))
    assert torch.equal(kept.kv_heads, kept.heads)
    assert kept.heads.tolist() == [[0, 2]] * 3
    assert kept.shape(alone).kv_heads == 2


def importance_by_weights(network, texts):
    """|Σ w · dL/dw| of what reads heads and channels out, and of the group of each dimension, by autograd through the
    whole network, text by text."""
    network = copy.deepcopy(network)
    shape = Shape.of(network.config)
    heads, channels = torch.zeros(shape.layers, shape.heads), torch.zeros(shape.layers, shape.inner)
    dimensions = torch.zeros(shape.hidden)
    offset = FAMILY[network.config.model_type].norm_offset
    for text in texts:
        network.zero_grad()
        logits = network(input_ids=text[None], use_cache=False).logits[0, :-1]
        F.cross_entropy(logits, text[1:], reduction="sum").backward()
        for index, layer in enumerate(network.get_decoder().layers):
            o, down = layer.self_attn.o_proj.weight, layer.mlp.down_proj.weight
            heads[index] += (o * o.grad).view(len(o), shape.heads, -1).sum(dim=(0, 2)).abs()
            channels[index] += (down * down.grad).sum(dim=0).abs()
        for name, weight in network.named_parameters():  # each once: a tied head is the embedding
            if "q_norm" in name or "k_norm" in name or "bias" in name:
                continue
            effect = (weight + offset if "norm" in name else weight) * weight.grad
            if effect.dim() == 2:
                effect = effect.sum(dim=1 if "o_proj" in name or "down_proj" in name else 0)
            dimensions += effect.abs()
    return heads.detach(), channels.detach(), dimensions.detach()


@pytest.mark.parametrize("family", FAMILIES)
def test_the_ranking_is_that_of_weights_times_their_gradients(family):
    network = shared_network(family)
    texts = torch.tensor([TEXT, TEXT[::-1], [(7 * i + 3) % 61 for i in range(len(TEXT))]])
    *pieces, found = prunable(network).by_taylor(texts.tolist())
    expected = Ranking.of(*importance_by_weights(network, texts))
    assert len(pieces) == 2 * len(expected.heads) + 1
    assert torch.equal(found.heads, expected.heads)
    assert torch.equal(found.dimensions, expected.dimensions)
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
        name: loss(file.pruned(ranking, UNITS), texts[1::2])
        for name, ranking in (
            ("taylor", taylor),
            ("size", file.by_magnitude()),
            *((f"chance {seed}", random_ranking(network, seed)) for seed in range(3)),
        )
    }
    whole = loss(own_decoder(network, 512), texts[1::2])
    assert losses.pop("taylor") - whole < 0.2 * (min(losses.values()) - whole), losses


def trained(seed):
    """A network that has learnt a little of texts in which one of two tokens follows from the one before, and the loss
    that dimensions cause on such texts by their ranking; with a network of other weights that says the same."""
    made = torch.Generator().manual_seed(seed)

    def texts(count):
        text = torch.randint(3, V, (count, 1), generator=made)
        for _ in range(23):
            likely = torch.rand(count, 1, generator=made) < 0.8
            last = text[:, -1:]
            text = torch.cat([text, 3 + torch.where(likely, 7 * last + 5, 3 * last + 1) % (V - 3)], dim=1)
        return text

    network = tiny_network("llama", seed, scale=0.1, hidden_size=64)
    optimiser = torch.optim.AdamW(network.parameters(), lr=3e-3)
    for _ in range(60):
        batch = texts(16)
        optimiser.zero_grad()
        logits = network(input_ids=batch, use_cache=False).logits[:, :-1]
        F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten()).backward()
        optimiser.step()
    scaled = copy.deepcopy(network)
    for layer in scaled.get_decoder().layers:
        attention, mlp = layer.self_attn, layer.mlp
        for norm, readers in (
            (layer.input_layernorm, (attention.q_proj, attention.k_proj, attention.v_proj)),
            (layer.post_attention_layernorm, (mlp.gate_proj, mlp.up_proj)),
        ):
            factors = 8 ** torch.randn(64, generator=torch.Generator().manual_seed(seed))
            with torch.no_grad():
                norm.weight /= factors
                for reader in readers:
                    reader.weight *= factors
    return network, scaled, texts(8).tolist(), texts(8).tolist()


def test_removing_the_dimensions_that_matter_least_costs_less_than_removing_by_size_or_by_chance():
    """In three trained networks, half of whose dimensions go. A norm's weights and those that read what it writes are
    scaled against each other, so that the size of weights says little; unscaled it orders about as well."""
    losses: dict[str, float] = Counter()
    for seed in range(3):
        network, scaled, measured, texts = trained(seed)
        file = prunable(scaled)
        *_, taylor = file.by_taylor(measured)
        *_, unscaled = prunable(network).by_taylor(measured)
        assert torch.equal(taylor.dimensions, unscaled.dimensions), "it is the same function of the same states"
        for name, ranking in (
            ("taylor", taylor),
            ("size", file.by_magnitude()),
            *((f"chance {draw}", random_ranking(network, draw)) for draw in range(3)),
        ):
            losses[name] += loss(file.pruned(ranking, LeftOut(dimensions=0.5)), texts) / 3
        losses["whole"] += loss(own_decoder(network, 512), texts) / 3
    whole, taylor = losses.pop("whole"), losses.pop("taylor")
    assert taylor - whole < 0.9 * (min(losses.values()) - whole), (whole, taylor, losses)


def test_the_gradient_of_the_head_is_that_of_autograd():
    network = shared_network("llama")
    shape, source = Shape.of(network.config), prepared(source_of(network), Shape.of(network.config))
    hidden, texts = torch.randn(2, 5, shape.hidden), torch.tensor([[1, 2, 3, 4, 5], [5, 4, 3, 2, 1]])
    leaf = hidden.clone().requires_grad_()
    logits = F.rms_norm(leaf, (shape.hidden,), source.dense("norm"), shape.epsilon) @ source.dense("head").t()
    F.cross_entropy(logits[:, :-1].flatten(0, 1), texts[:, 1:].flatten(), reduction="sum").backward()
    torch.testing.assert_close(head_loss(shape, source, hidden, texts).gradient, leaf.grad, atol=1e-5, rtol=1e-4)


def test_closed_gates_are_heads_and_channels_that_are_gone():
    network = shared_network("llama")
    shape, source = Shape.of(network.config), prepared(source_of(network), Shape.of(network.config))
    kept = KeptUnits.of(random_ranking(network), shape, UNITS)
    hidden = torch.randn(1, 6, shape.hidden)
    gates = Gates(torch.zeros(1, shape.heads), torch.zeros(1, shape.inner))
    gates.heads[:, kept.heads[0]] = gates.channels[:, kept.channels[0]] = 1.0
    emptied_source = prepared(source_of(emptied(network, kept)), shape)
    expected = DifferentiableLayer(shape, emptied_source, 0, Gates.open(shape, 1))(hidden)
    torch.testing.assert_close(DifferentiableLayer(shape, source, 0, gates)(hidden), expected)


@pytest.mark.skipif(not native_is_here(), reason="no native kernels here")
def test_it_runs_in_the_native_kernels_with_fewer_bytes():
    network = shared_network("llama")
    whole = native_decoder(network, 512)
    assert isinstance(whole.network, NativeNetwork)
    file = prunable(network, "int8")
    file = PrunableFile(file.target, file.opened, lambda shape, source: NativeNetwork(shape, source, "int8"))
    ranking = random_ranking(network)
    model = file.pruned(ranking, UNITS)
    assert isinstance(model, Decoder)
    assert model.network.nbytes < whole.network.nbytes
    kept = KeptUnits.of(ranking, file.whole, UNITS)
    expected = logits_of(own_decoder(emptied(network, kept), 512), TEXT)
    assert F.cosine_similarity(logits_of(model, TEXT), expected, dim=0) > 0.99
