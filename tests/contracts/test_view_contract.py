"""What every `Model` promises about twins and views: the same weights, a cache of its own, and only what is left in."""

from __future__ import annotations

import copy

import pytest
import torch
from contracts.kit import random_tree, requested
from contracts.models import BUILDERS, HIDDEN, V, every_model, shared_network

from specchat.core.tree import ROOT, TokenTree
from specchat.errors import ModelError
from specchat.models.base.kv_cache import KVCache
from specchat.models.base.sub_layers import SubLayers
from specchat.models.other.reference_view import without_parts
from specchat.models.own.decoder import Decoder

PREFIX = [1, 7, 30, 7, 2, 59, 14, 7, 30, 11, 5, 5, 41]
CLOSE = {"atol": 2e-4, "rtol": 2e-4}

LEFT_OUT = {
    "a layer": {"layers": (0, 2)},
    "the first attention": {"skip_attention": (0,)},
    "two halves": {"skip_attention": (1,), "skip_mlp": (2,)},
    "an MLP and a layer": {"layers": (1, 2), "skip_mlp": (1,)},
    "everything": {"layers": ()},
}


@pytest.fixture(params=list(every_model()))
def subject(request):
    factory, family = request.param
    return factory(family, 256)


@pytest.fixture(params=list(BUILDERS))
def build(request):
    """Builds models of one path from a network."""
    return BUILDERS[request.param]


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


def test_a_view_with_nothing_left_out_says_what_its_target_says_to_the_bit(subject):
    expected = rounds(subject.model)
    assert torch.equal(rounds(subject.model.view()), expected)
    assert torch.equal(rounds(subject.model.twin()), expected)
    everything = range(subject.model.layers)
    assert torch.equal(rounds(subject.model.view(layers=everything).view()), expected)


def test_twins_and_views_have_caches_and_counters_of_their_own(subject):
    model = subject.model
    twin, view = model.twin(), model.view(skip_mlp=[0])
    model.prefill(PREFIX)
    assert twin.cached(PREFIX) == view.cached(PREFIX) == 0
    assert twin.counters.rows == view.counters.rows == 0
    before = rounds(subject.fresh(), PREFIX[:5])
    torch.testing.assert_close(rounds(twin, PREFIX[:5]), before, **CLOSE)
    rounds(view, PREFIX[3:])
    assert model.cached(PREFIX) == len(PREFIX)


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


def test_rows_of_the_head_give_the_logits_of_these_tokens(subject):
    model, tokens = subject.model, [7, 3, 7, V - 1]
    states = torch.nn.functional.rms_norm(torch.randn(3, model.hidden_size) * 2, (model.hidden_size,), eps=1e-5)
    rows = model.head_rows(tokens)
    assert rows.dtype == torch.float32
    torch.testing.assert_close(states @ rows.t(), model.head(states)[:, tokens].float(), rtol=0.03, atol=0.03)


@pytest.mark.parametrize("family", ["llama", "gemma3_text"])
@pytest.mark.parametrize("left_out", LEFT_OUT.values(), ids=LEFT_OUT.keys())
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
    assert torch.equal(rounds(once.twin()), rounds(once.twin()))


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


def test_a_layer_that_is_not_there_cannot_be_left_out(subject):
    for wrong in ({"layers": [9]}, {"skip_attention": [9]}, {"skip_mlp": [9]}):
        with pytest.raises(AssertionError, match="no layer 9"):
            subject.model.view(**wrong)


def test_a_network_of_another_form_is_refused_by_name():
    network = copy.deepcopy(shared_network("llama"))
    layer = network.get_decoder().layers[1]
    layer.feed_forward = layer.mlp
    del layer.mlp
    with pytest.raises(ModelError, match="LlamaDecoderLayer have no 'mlp'"):
        without_parts(network, SubLayers.of_all(3).without(None, (), (1,)))


# ------------------------------------------------------------------------------------------ a part of the cache


def after(model, text):
    """(V,) logits after a text of which the model holds all but the last tokens, and what it read for them."""
    model.prefill(text[:-1])
    logits = model.read(TokenTree(text[-1], V).freeze()).after(ROOT)
    model.keep(())
    return logits


def test_all_of_a_cache_that_is_borrowed_is_the_same_cache_to_the_bit(subject):
    model = subject.model
    model.prefill(PREFIX)
    model.read(TokenTree(9, V).freeze())
    model.keep(())
    text = [*PREFIX, 9]
    view = model.view()
    view.borrow(text, range(len(text)))
    assert view.cached(text) == len(text)
    assert torch.equal(rounds(view, text), rounds(model, text))


def masked_truth(network, tokens, hidden_from, kept):
    """Logits after the last token, where tokens from `hidden_from` on see of those before only the kept ones."""
    count = len(tokens)
    seen = torch.ones(count, count, dtype=torch.bool).tril()
    for position in set(range(hidden_from)) - set(kept):
        seen[hidden_from:, position] = False
    masks = seen[None, None]
    if (window := getattr(network.config, "sliding_window", None)) is not None:
        near = torch.arange(count)[:, None] - torch.arange(count) < window
        masks = {"full_attention": masks, "sliding_attention": (seen & near)[None, None]}
    with torch.no_grad():
        return network(input_ids=torch.tensor([tokens]), attention_mask=masks, use_cache=False).logits[0, -1]


KEPT = ([0, 1, 9, 10, 11, 12], [3, 4, 8], [12], [])


@pytest.mark.parametrize("kept", KEPT, ids=len)
@pytest.mark.parametrize("path", [name for name in BUILDERS if name != "native"])
@pytest.mark.parametrize("family", ["llama", "gemma3_text"])
def test_of_a_borrowed_part_only_that_part_is_seen_at_its_positions(path, family, kept):
    network = shared_network(family)
    model = BUILDERS[path](network, 256)
    model.prefill(PREFIX)
    tree = TokenTree(5, V).freeze()
    model.read(tree)  # a tree in the middle of a round is no part of the text
    view = model.view()
    view.borrow(PREFIX, kept)
    text = list(PREFIX)
    for token in (5, 9, 2, 40):
        text.append(token)
        torch.testing.assert_close(after(view, text), masked_truth(network, text, len(PREFIX), kept), **CLOSE)
    assert view.counters.rows == 4


@pytest.mark.parametrize("kept", KEPT, ids=len)
def test_native_rows_that_are_borrowed_say_to_the_bit_what_a_mask_would_make_them_say(kept):
    if "native" not in BUILDERS:
        pytest.skip("no native kernels here")
    model = BUILDERS["native"](shared_network("llama"), 256)
    assert isinstance(model, Decoder)
    model.prefill(PREFIX)
    view = model.view()
    view.borrow(PREFIX, kept)
    tree = random_tree(V, 6, 2)
    plan = model._text.rows.plan_tree(tree, None, ())
    hidden = [position for position in range(len(PREFIX)) if position not in kept]
    plan.mask[:, hidden] = False
    masked = type(plan)(plan.start, 0, plan.nodes, plan.tokens, plan.positions, plan.mask, common=0)
    expected = model.network.head(model._run(masked, None)).logits
    assert torch.equal(view.read(tree).logits, expected)


def test_going_back_behind_what_was_borrowed_keeps_what_is_left_of_it(build):
    network = shared_network("llama")
    model = build(network, 256)
    model.prefill(PREFIX)
    for back in (10, 5, 2, 0):
        view, again = model.view(), model.view()
        view.borrow(PREFIX, [0, 4, 8, 12])
        after(view, [*PREFIX, 5, 6])
        again.borrow(PREFIX[:back], [position for position in (0, 4, 8, 12) if position < back])
        text = [*PREFIX[:back], 21, 22, 23]
        assert torch.equal(after(view, text), after(again, text))
        assert view.cached(text) == len(text)


def test_a_cache_is_borrowed_through_views_with_fewer_layers_and_past_the_first_capacity(build):
    network, text = shared_network("llama"), [(7 * i + i // 13) % V for i in range(1030)]
    model = build(network, 2048)
    model.prefill(text)
    view = model.view(layers=(0, 2))
    view.borrow(text, range(0, 1030, 2))
    kept = view.view(skip_mlp=(2,))
    kept.borrow(text, range(0, 1030, 10))
    direct = model.view(layers=(0, 2), skip_mlp=(2,))
    direct.borrow(text, range(0, 1030, 10))
    assert torch.equal(after(kept, [*text, 5]), after(direct, [*text, 5]))


def test_what_was_borrowed_before_is_not_copied_again(build, monkeypatch):
    model = build(shared_network("llama"), 256)
    model.prefill(PREFIX)
    view, longer, copied = model.view(layers=(0, 2)), [*PREFIX, 5, 9, 2, 40], []
    copy_rows_ = KVCache.copy_rows_
    monkeypatch.setattr(
        KVCache,
        "copy_rows_",
        lambda cache, source, rows, known=0: (copied.append(len(rows) - known), copy_rows_(cache, source, rows, known)),
    )
    view.borrow(PREFIX, range(len(PREFIX)))
    after(view, [*PREFIX, 3, 3, 3])  # rows of its own, which go
    after(model, [*longer, 7])
    view.borrow(longer, range(len(longer)))
    changed = [*PREFIX[:6], 33, *PREFIX[7:]]
    again = after(view, [*longer, 7])
    model.prefill(changed[:-1])
    after(model, changed)
    view.borrow(changed, range(len(changed)))
    assert copied == [len(PREFIX), 4, len(PREFIX) - 6]
    direct = model.view(layers=(0, 2))
    direct.borrow(changed, range(len(changed)))
    assert torch.equal(after(view, [*changed, 7]), after(direct, [*changed, 7]))
    model.prefill(longer)
    after(model, [*longer, 7])
    other = model.view(layers=(0, 2))
    other.borrow(longer, range(len(longer)))
    torch.testing.assert_close(again, after(other, [*longer, 7]), **CLOSE)


def test_only_what_was_read_is_borrowed(subject):
    subject.model.prefill(PREFIX)
    subject.model.read(TokenTree(3, V).freeze())  # what was put off is read now
    subject.model.keep(())
    view, again = subject.model.view(), subject.model.view()
    view.borrow([*PREFIX, 3, 8, 8], [0, 1, 14, 15])
    assert view.cached([*PREFIX, 3, 8, 8]) == len(PREFIX) + 1
    again.borrow([*PREFIX, 3], [0, 1])
    assert torch.equal(after(view, [*PREFIX, 3, 8, 8, 5]), after(again, [*PREFIX, 3, 8, 8, 5]))
    with pytest.raises(AssertionError, match="made from"):
        subject.fresh().borrow([], [])
