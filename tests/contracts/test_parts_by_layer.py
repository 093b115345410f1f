"""What models promise that hold another part of a text in every layer: true scores, those rows and no others."""

from __future__ import annotations

import pytest
import torch
from contracts.models import BUILDERS, V, shared_network
from test_borrowed_cache import after
from test_view_contract import CLOSE

from specchat.core.drafting_networks import HoldsPartsByLayer
from specchat.core.tree import ROOT, Guess, TokenTree
from specchat.models.decoder import eager
from specchat.models.decoder.decoder import Decoder

ABLE = [name for name in BUILDERS if name != "reference"]
TEXT = [(7 * i + i // 13) % V for i in range(150)]
CHUNK = 8


def attention_weights(network, text):
    """For each layer (heads, text, text)."""
    network.set_attn_implementation("eager")
    try:
        with torch.no_grad():
            said = network(input_ids=torch.tensor([text]), output_attentions=True, use_cache=False)
    finally:
        network.set_attn_implementation("sdpa")
    return [weights[0] for weights in said.attentions]


@pytest.mark.parametrize("path", ABLE)
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "smollm3"])
def test_scores_are_the_products_of_queries_with_the_mean_keys_of_chunks(path, family):
    """Scores of tokens are logarithms of attention weights, up to a number of the query's own."""
    network = shared_network(family)
    model = BUILDERS[path](network, 512)
    model.prefill(TEXT[:-1])
    view = model.with_new_cache()
    assert isinstance(view, HoldsPartsByLayer)
    found = view.chunk_scores(TEXT, CHUNK)
    assert found.tokens == len(TEXT) - 1
    weights = attention_weights(network, TEXT)
    whole = found.tokens // CHUNK * CHUNK
    heads = network.config.num_key_value_heads if path in ABLE else 1  # ranks score for all heads together
    assert found.scores.shape == (len(weights), heads, whole // CHUNK)
    room = CLOSE if path != "native" else {"rtol": 0.05, "atol": 0.15}
    for layer, of_layer in enumerate(weights):
        expected = (
            of_layer[:, -1, :whole].log().view(len(found.scores[layer]), -1, whole // CHUNK, CHUNK).mean(dim=(1, 3))
        )
        scores = found.scores[layer]
        centred = [each - each.mean(dim=1, keepdim=True) for each in (scores, expected)]
        torch.testing.assert_close(*centred, **room)


@pytest.mark.parametrize("path", ABLE)
def test_scoring_leaves_the_text_and_a_tree_that_is_being_read_alone(path):
    model = BUILDERS[path](shared_network("llama"), 512)
    untouched = BUILDERS[path](shared_network("llama"), 512)
    said = []
    for one in (model, untouched):
        one.prefill(TEXT[:-1])
        tree = TokenTree(TEXT[-1], V)
        child = tree.add(ROOT, Guess(5))
        tree.freeze()
        one.read(tree, [ROOT])
        if one is model:
            view = one.with_new_cache()
            before = one.counters.passes
            assert isinstance(view, HoldsPartsByLayer)
            view.chunk_scores(TEXT, CHUNK)
            assert (one.counters.passes, view.counters.passes, view.counters.rows) == (before, 1, 1)
        logits = [one.read(tree, [child]).after(child)]
        one.keep([child])
        said.append([*logits, one.read(TokenTree(9, V).freeze()).after(ROOT)])
    for one, other in zip(*said, strict=True):
        torch.testing.assert_close(one, other, **CLOSE)


def test_layers_that_see_a_window_score_all_chunks_alike():
    for path in ABLE:
        model = BUILDERS[path](shared_network("gemma3_text"), 512)
        model.prefill(TEXT[:-1])
        view = model.with_new_cache()
        assert isinstance(view, HoldsPartsByLayer)
        scores = view.chunk_scores(TEXT, CHUNK).scores
        assert [bool(layer.any()) for layer in scores] == [False, True, False]


def positions_of(layers: int, seed: int = 0, heads: int = 1) -> torch.Tensor:
    """(layers, 40), or (layers, heads, 40), of the first 149 positions, other ones in every layer and head."""
    generator = torch.Generator().manual_seed(seed)
    drawn = [torch.randperm(149, generator=generator)[:40].sort().values for _ in range(layers * heads)]
    return torch.stack(drawn) if heads == 1 else torch.stack(drawn).view(layers, heads, 40)


@pytest.mark.parametrize("heads", [1, 2], ids=["together", "each head"])
@pytest.mark.parametrize("path", ABLE)
def test_each_layer_sees_its_own_positions(path, heads):
    network = shared_network("llama")
    assert network.config.num_key_value_heads == 2
    model = BUILDERS[path](network, 512)
    model.prefill(TEXT[:-1])
    view, positions = model.with_new_cache(), positions_of(model.layers, heads=heads)
    assert isinstance(view, HoldsPartsByLayer)
    view.copy_rows_by_layer(TEXT[:-1], positions)
    assert view.cached(TEXT) == len(TEXT) - 1
    reference = BUILDERS["decoder"](network, 512)
    reference.prefill(TEXT[:-1])
    expected = [masked(reference, [*TEXT, *more], positions) for more in ([], [5], [5, 9])]
    room = CLOSE if path != "native" else {"rtol": 0.1, "atol": 0.5}
    for count, wanted in enumerate(expected):
        torch.testing.assert_close(after(view, [*TEXT, 5, 9][: len(TEXT) + count]), wanted, **room)
    assert view.counters.rows == 3


@torch.inference_mode()
def masked(model, text, positions):
    """Logits after a text whose tokens from the 150th on see, in each layer, only some of those before."""
    assert isinstance(model, Decoder)
    layer = -1

    def attend(queries, keys, values, mask):
        nonlocal layer
        layer += 1
        rows, heads, _ = queries.shape
        seen = torch.zeros(heads, rows, keys.shape[1], dtype=torch.bool)
        for head in range(heads):
            of_layer = positions[layer]
            seen[head][:, of_layer if of_layer.dim() == 1 else of_layer[head * len(keys) // heads]] = True
        seen[..., 149:] = torch.ones(rows, rows, dtype=torch.bool).tril()
        keys, values = (each.repeat_interleave(heads // len(each), dim=0) for each in (keys, values))
        mixed = torch.nn.functional.scaled_dot_product_attention(queries.transpose(0, 1), keys, values, seen)
        return mixed.transpose(0, 1).reshape(rows, -1)

    model.prefill(TEXT[:-1])
    plan = model.rows.plan_prefix(text[149:])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(eager, "fused", attend)
        hidden = model._read_text(plan, None)
    return model.head(hidden[-1:])[0]


@pytest.mark.parametrize("path", ABLE)
def test_the_same_positions_everywhere_are_what_borrowing_them_is_to_the_bit(path):
    for family in ("llama", "gemma3_text"):
        model = BUILDERS[path](shared_network(family), 512)
        model.prefill(TEXT[:-1])
        kept = [*range(8), *range(40, 64), *range(120, 149)]
        one, each = model.with_new_cache(), model.with_new_cache()
        assert isinstance(each, HoldsPartsByLayer)
        one.copy_rows_from(TEXT[:-1], kept)
        each.copy_rows_by_layer(TEXT[:-1], torch.tensor(kept).expand(model.layers, -1))
        assert torch.equal(after(one, [*TEXT, 4]), after(each, [*TEXT, 4]))


@pytest.mark.parametrize("path", ABLE)
def test_going_back_behind_parts_of_layers_reads_the_text_again(path):
    model = BUILDERS[path](shared_network("llama"), 512)
    model.prefill(TEXT[:-1])
    view, fresh = model.with_new_cache(), model.with_new_cache()
    assert isinstance(view, HoldsPartsByLayer)
    view.copy_rows_by_layer(TEXT[:-1], positions_of(model.layers))
    text = [*TEXT[:60], 21, 22]
    assert torch.equal(after(view, text), after(fresh, text))


@pytest.mark.parametrize("path", ABLE)
def test_a_view_of_parts_of_layers_borrows_all_of_them_or_what_every_layer_holds(path):
    model = BUILDERS[path](shared_network("llama"), 512)
    model.prefill(TEXT[:-1])
    part, text = model.with_new_cache(), [*TEXT, 4]
    assert isinstance(part, HoldsPartsByLayer)
    part.copy_rows_by_layer(TEXT[:-1], positions_of(model.layers))
    after(part, text)
    view, direct = part.view(), model.with_new_cache()
    view.copy_rows_from(text, range(len(text)))
    assert isinstance(direct, HoldsPartsByLayer)
    direct.copy_rows_by_layer(TEXT[:-1], positions_of(model.layers))
    after(direct, text)
    assert torch.equal(after(view, [*text, 8]), after(direct, [*text, 8]))
    view.copy_rows_from(text, [3, 5, 149])
    assert view.rows.held == 1
    assert view.cached(text) == len(text)


@pytest.mark.parametrize("path", ABLE)
def test_all_of_a_text_is_borrowed_over_parts_of_layers(path):
    model = BUILDERS[path](shared_network("llama"), 512)
    model.prefill(TEXT[:-1])
    view, direct = model.with_new_cache(), model.with_new_cache()
    assert isinstance(view, HoldsPartsByLayer)
    view.copy_rows_by_layer(TEXT[:-1], positions_of(model.layers))
    for one in (view, direct):
        one.copy_rows_from(TEXT[:-1], range(149))
    assert torch.equal(after(view, TEXT), after(direct, TEXT))


@pytest.mark.parametrize("path", ABLE)
def test_windows_refuse_positions_that_differ(path):
    model = BUILDERS[path](shared_network("gemma3_text"), 512)
    model.prefill(TEXT[:-1])
    view = model.with_new_cache()
    assert isinstance(view, HoldsPartsByLayer)
    with pytest.raises(AssertionError, match="window"):
        view.copy_rows_by_layer(TEXT[:-1], positions_of(model.layers))
