"""A pruned network learns back from the whole one's texts, and what it learnt is nothing but sums of matrices."""

from __future__ import annotations

import pytest
import torch
from contracts.models import shared_network
from test_pruned_weights import TEXT, UNITS, emptied, logits_of, prunable, random_ranking

from specchat.core.drafting_networks import LeftOut
from specchat.core.tree import TokenTree
from specchat.models.decoder.differentiable_layer import DifferentiableLayer
from specchat.models.decoder.eager import EagerNetwork
from specchat.models.decoder.layer_weights import Builder
from specchat.models.decoder.pruned_recovery import RECOVERED
from specchat.models.decoder.pruning import KeptUnits, PrunableFile
from tests.training.training_kit import SOURCES, V, target, weights_of

CPU = torch.device("cpu")


def test_what_was_learnt_is_added_to_the_products():
    network, generator = shared_network("llama"), torch.Generator().manual_seed(2)
    ranking, file = random_ranking(network), prunable(network)
    kept = KeptUnits.of(ranking, file.whole, UNITS)
    shape = kept.shape(file.whole)
    factors = {}
    for layer in range(shape.layers):
        for name in RECOVERED:
            outputs, inputs = shape.matrix(name)
            down, up = (0.2 * torch.randn(*size, generator=generator) for size in ((2, inputs), (outputs, 2)))
            factors[layer, name] = down, up
    expected = emptied(network, kept)
    parts = {"v": "self_attn.v_proj", "o": "self_attn.o_proj", "gate": "mlp.gate_proj"}
    parts |= {"up": "mlp.up_proj", "down": "mlp.down_proj"}
    with torch.no_grad():
        for (layer, name), (down, up) in factors.items():
            weight = expected.get_submodule(f"model.layers.{layer}.{parts[name]}").weight
            columns = (kept.heads[layer][:, None] * shape.head_dim + torch.arange(shape.head_dim)).flatten()
            channels = kept.channels[layer]
            if name == "v":
                weight += up @ down
            elif name in ("gate", "up"):
                weight[channels] += up @ down
            else:
                weight[:, columns if name == "o" else channels] += up @ down
        wanted = expected(input_ids=torch.tensor([TEXT]), use_cache=False).logits[0, -1]
    torch.testing.assert_close(logits_of(file.pruned(ranking, UNITS, factors), TEXT), wanted, atol=2e-4, rtol=2e-4)
    other = {**factors, (0, "o"): (torch.ones(2, 7), torch.ones(32, 2))}
    plain = logits_of(file.pruned(ranking, UNITS), TEXT)
    assert torch.equal(logits_of(file.pruned(ranking, UNITS, other), TEXT), plain), "learnt for another share"
    assert not torch.allclose(plain, wanted, atol=0.1)


@torch.no_grad()
def texts_of(model, count, tokens=64):
    """Texts drawn from a model, all of them at once."""
    weights, shape = weights_of(model), model.network.shape
    texts, made = 3 + torch.arange(count)[:, None] % (V - 3), torch.Generator().manual_seed(1)
    for _ in range(tokens - 1):
        hidden = weights.embed(texts.flatten().tolist()).view(*texts.shape, -1).float()
        for layer in range(shape.layers):
            hidden = DifferentiableLayer(shape, weights, layer)(hidden)
        laws = model.head(hidden[:, -1]).softmax(dim=1)
        texts = torch.cat([texts, torch.multinomial(laws, 1, generator=made)], dim=1)
    return texts.tolist()


def agreeing(model, draft, texts):
    """After how many tokens of these texts the draft guesses what the model says next."""
    right = 0
    for text in texts:
        for place in range(len(text)):
            said = []
            for one in (model, draft):
                one.prefill(text[:place])
                said.append(int(one.read(TokenTree(text[place], V).freeze()).after(0).argmax()))
            right += said[0] == said[1]
    return right


@pytest.fixture(scope="module")
def whole():
    """A target and its file; most of what it says follows from its MLPs and the last token."""
    model = target(forgetful=True)
    source = SOURCES[model]

    def narrower(shape, source):
        return EagerNetwork(Builder(shape, source, "float32", CPU).build())

    return model, PrunableFile(model, lambda: (source, model.network.shape), narrower)


def test_a_text_like_those_that_were_learnt_becomes_likelier(whole):
    model, file = whole
    text = texts_of(model, 1, 24)[0]
    ranking = file.by_magnitude()
    *_, recovered = file.recover(ranking, UNITS, [text] * 3, 4)
    assert recovered
    likely = []
    for added in ({}, recovered):
        pruned = file.pruned(ranking, UNITS, added)
        likely.append(sum(float(logits_of(pruned, text[:end]).log_softmax(0)[text[end]]) for end in range(8, 24)))
    assert likely[1] > likely[0] + 3.0


@pytest.mark.slow
def test_acceptance_rises_by_recovery_on_texts_that_it_did_not_learn_from(whole):
    model, file = whole
    texts = texts_of(model, 60)
    *_, ranking = file.by_taylor(texts[:8])
    *_, recovered = file.recover(ranking, UNITS, texts[:54], 12)
    before, after = (agreeing(model, file.pruned(ranking, UNITS, added), texts[54:]) for added in ({}, recovered))
    assert after > 1.3 * before > 0


def test_additions_that_do_not_make_a_text_held_out_likelier_are_dropped(whole):
    model, file = whole
    texts = texts_of(model, 6)
    noise = torch.Generator().manual_seed(0)
    wrong = torch.randint(3, V, (5, 64), generator=noise).tolist()
    *_, recovered = file.recover(file.by_magnitude(), LeftOut(heads=0.1, channels=0.1), [*wrong, texts[5]], 8)
    assert recovered == {}
