"""What every `Model` promises about borrowed rows of another's cache: the same bits, and only what was read."""

from __future__ import annotations

import pytest
import torch
from contracts.kit import random_tree
from contracts.models import BUILDERS, V, each_flexible_model, shared_network
from rows import each_row
from test_view_contract import CLOSE, PREFIX, rounds

from specchat.core.tree import ROOT, TokenTree
from specchat.models.decoder.decoder import Decoder
from specchat.models.decoder.kv_cache import KVCache


def after(model, text):
    """(V,) logits after a text of which the model holds all but the last tokens, and what it read for them."""
    model.prefill(text[:-1])
    logits = model.read(TokenTree(text[-1], V).freeze()).after(ROOT)
    model.keep(())
    return logits


@each_flexible_model
def test_all_of_a_cache_that_is_borrowed_is_the_same_cache_to_the_bit(subject):
    model = subject.model
    model.prefill(PREFIX)
    model.read(TokenTree(9, V).freeze())
    model.keep(())
    text = [*PREFIX, 9]
    view = model.view()
    view.copy_rows_from(text, range(len(text)))
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


@each_row("kept", KEPT, ids=len)
@each_row("path", [name for name in BUILDERS if name != "native"])
@each_row("family", ["llama", "gemma3_text"])
def test_of_a_borrowed_part_only_that_part_is_seen_at_its_positions(path, family, kept):
    network = shared_network(family)
    model = BUILDERS[path](network, 256)
    model.prefill(PREFIX)
    tree = TokenTree(5, V).freeze()
    model.read(tree)  # a tree in the middle of a round is no part of the text
    view = model.view()
    view.copy_rows_from(PREFIX, kept)
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
    view.copy_rows_from(PREFIX, kept)
    tree = random_tree(V, 6, 2)
    plan, text = model.rows.plan_tree(tree, None, ()), len(PREFIX)
    above = [*range(-1, text - 1), *[text + parent for parent in plan.above]]
    masked = type(plan)(plan.start, 0, plan.nodes, plan.tokens, 0, above, 0)  # no row is seen by all
    masked.mask[:, [position for position in range(text) if position not in kept]] = False
    expected = model.network.head(model._read_text(masked, None)).logits
    assert torch.equal(view.read(tree).logits, expected)


def test_going_back_behind_what_was_borrowed_keeps_what_is_left_of_it(build):
    network = shared_network("llama")
    model = build(network, 256)
    model.prefill(PREFIX)
    for back in (10, 5, 2, 0):
        view, again = model.view(), model.view()
        view.copy_rows_from(PREFIX, [0, 4, 8, 12])
        after(view, [*PREFIX, 5, 6])
        again.copy_rows_from(PREFIX[:back], [position for position in (0, 4, 8, 12) if position < back])
        text = [*PREFIX[:back], 21, 22, 23]
        assert torch.equal(after(view, text), after(again, text))
        assert view.cached(text) == len(text)


def test_a_cache_is_borrowed_through_views_with_fewer_layers_and_past_the_first_capacity(build):
    network, text = shared_network("llama"), [(7 * i + i // 13) % V for i in range(1030)]
    model = build(network, 2048)
    model.prefill(text)
    view = model.view(layers=(0, 2))
    view.copy_rows_from(text, range(0, 1030, 2))
    kept = view.view(skip_mlp=(2,))
    kept.copy_rows_from(text, range(0, 1030, 10))
    direct = model.view(layers=(0, 2), skip_mlp=(2,))
    direct.copy_rows_from(text, range(0, 1030, 10))
    assert torch.equal(after(kept, [*text, 5]), after(direct, [*text, 5]))


def test_of_a_part_only_what_is_there_is_borrowed_again(build):
    model = build(shared_network("llama"), 256)
    model.prefill(PREFIX)
    part = model.view()
    part.copy_rows_from(PREFIX, [0, 4, 8, 12])
    after(part, [*PREFIX, 5, 6])
    again, direct = part.view(), model.view()
    again.copy_rows_from([*PREFIX, 5], range(len(PREFIX) + 1))
    direct.copy_rows_from(PREFIX, [0, 4, 8, 12])
    torch.testing.assert_close(after(again, [*PREFIX, 5, 9]), after(direct, [*PREFIX, 5, 9]), **CLOSE)
    again.copy_rows_from(PREFIX, [3, 4, 5, 12])
    direct.copy_rows_from(PREFIX, [4, 12])
    assert torch.equal(after(again, [*PREFIX, 9]), after(direct, [*PREFIX, 9]))


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
    view.copy_rows_from(PREFIX, range(len(PREFIX)))
    after(view, [*PREFIX, 3, 3, 3])  # rows of its own, which go
    after(model, [*longer, 7])
    view.copy_rows_from(longer, range(len(longer)))
    changed = [*PREFIX[:6], 33, *PREFIX[7:]]
    again = after(view, [*longer, 7])
    model.prefill(changed[:-1])
    after(model, changed)
    view.copy_rows_from(changed, range(len(changed)))
    assert copied == [len(PREFIX), 4, len(PREFIX) - 6]
    direct = model.view(layers=(0, 2))
    direct.copy_rows_from(changed, range(len(changed)))
    assert torch.equal(after(view, [*changed, 7]), after(direct, [*changed, 7]))
    model.prefill(longer)
    after(model, [*longer, 7])
    other = model.view(layers=(0, 2))
    other.copy_rows_from(longer, range(len(longer)))
    torch.testing.assert_close(again, after(other, [*longer, 7]), **CLOSE)


@each_flexible_model
def test_only_what_was_read_is_borrowed(subject):
    subject.model.prefill(PREFIX)
    subject.model.read(TokenTree(3, V).freeze())  # what was put off is read now
    subject.model.keep(())
    view, again = subject.model.view(), subject.model.view()
    view.copy_rows_from([*PREFIX, 3, 8, 8], [0, 1, 14, 15])
    assert view.cached([*PREFIX, 3, 8, 8]) == len(PREFIX) + 1
    again.copy_rows_from([*PREFIX, 3], [0, 1])
    assert torch.equal(after(view, [*PREFIX, 3, 8, 8, 5]), after(again, [*PREFIX, 3, 8, 8, 5]))
    with pytest.raises(AssertionError, match="made from"):
        subject.fresh().copy_rows_from([], [])
