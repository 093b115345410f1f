"""Rows by token: what a trained network takes of tokens, and heads that grow."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from contracts.models import shared_network
from contracts.tiny_networks import tiny_trained
from safetensors.torch import load_file, save_file

from specchat.config.trained_drafters import WEIGHTS
from specchat.models.backends.transformers_model import ReferenceModel
from specchat.models.cpu_kernels.kernels import native_works
from specchat.models.cpu_kernels.linear import NativeHead, small_network_kernels
from specchat.models.decoder import trimmed_head
from specchat.models.decoder.trimmed_head import PickedLogits, TorchHead, TrimmedHead
from specchat.models.draft_heads import drafting as token_inputs
from specchat.models.draft_heads.drafting import TokenInputs
from specchat.training.learning_network import LearningNetwork

VOCAB = 50


def inputs(known):
    """Rows that say their token, and the lists of tokens that were computed."""
    asked = []

    def write(tokens, to):
        asked.append(list(tokens))
        to.copy_(torch.tensor([[float(token), -float(token)] for token in tokens]))

    return TokenInputs(write, VOCAB, 2, known), asked


def said(rows):
    return rows[:, 0].tolist()


def test_every_token_is_computed_once():
    rows, asked = inputs([7, 3])
    assert said(rows.of([3, 9, 3, 7])) == [3.0, 9.0, 3.0, 7.0]
    assert said(rows.of([9, 11, 9])) == [9.0, 11.0, 9.0]
    assert asked == [[7, 3], [9], [11]]


def test_what_is_known_from_the_beginning_is_computed_in_parts(monkeypatch):
    monkeypatch.setattr(token_inputs, "_AT_ONCE", 2)
    rows, asked = inputs([7, 3, 1, 8, 2])
    assert asked == [[7, 3], [1, 8], [2]]
    assert said(rows.of([2, 8, 7])) == [2.0, 8.0, 7.0]


def test_the_table_stays_where_it_is_and_knows_what_was_asked_for():
    rows, _ = inputs([7])
    before = rows.within([7])
    after = rows.within([20, 21])
    assert after is before
    assert said(after.rows[torch.from_numpy(after.places[[7, 20, 21]]).long()]) == [7.0, 20.0, 21.0]
    assert after.places[22] == -1


def test_a_full_table_forgets_all_but_what_it_knew_at_first(monkeypatch):
    monkeypatch.setattr(token_inputs, "_MOST_OTHERS", 3)
    rows, asked = inputs([7])
    assert said(rows.of([1, 2, 3])) == [1.0, 2.0, 3.0]
    assert said(rows.of([3, 4, 7])) == [3.0, 4.0, 7.0]
    assert asked == [[7], [1, 2, 3], [3, 4]]
    assert rows.within([7]).places[1] == -1


def test_more_tokens_than_there_is_room_for_are_answered_all_the_same(monkeypatch):
    monkeypatch.setattr(token_inputs, "_MOST_OTHERS", 3)
    rows, _ = inputs([7])
    many = [*range(10), *range(12)]
    assert said(rows.of(many)) == [float(token) for token in many]


def test_of_all_frequent_tokens_of_the_target_it_is_known_beforehand_what_steps_take(monkeypatch, tmp_path):
    target, known = ReferenceModel(shared_network("llama"), 64), []
    trained = tiny_trained("hydra", target)
    tensors = load_file(trained.weights)
    tensors["tokens"] = torch.tensor([4, 2, 7, target.vocab_size, 3], dtype=torch.int32)
    save_file(tensors, tmp_path / WEIGHTS)
    begin = TokenInputs.__init__

    def noted(self, write, vocab_size, width, tokens, *like):
        known.append(list(tokens))
        begin(self, write, vocab_size, width, tokens, *like)

    monkeypatch.setattr(TokenInputs, "__init__", noted)
    LearningNetwork(target, replace(trained, folder=tmp_path), tokens=2)
    assert known == [[4, 2, 7, 3]]


class Picked:
    def __init__(self):
        self.rows = []

    def append(self, rows):
        self.rows.append(list(rows))

    def forked(self):
        head = Picked()
        head.rows = list(self.rows)
        return head


def test_a_head_grows_at_once_or_by_several_tokens_together(monkeypatch):
    monkeypatch.setattr(trimmed_head, "_TOGETHER", 3)
    head = TrimmedHead(Picked, torch.tensor([5, 6]), [5, 6], list)
    head.add_later([5, 8])
    head.add_later([8, 9])
    assert head.tokens.tolist() == [5, 6]
    head.add_later([10, 6])
    assert head.tokens.tolist() == [5, 6, 8, 9, 10]
    head.add_later([11])
    head.add([12])
    assert head.tokens.tolist() == [5, 6, 8, 9, 10, 11, 12]
    assert head.product.rows == [[5, 6], [8, 9, 10], [11, 12]]


def test_a_head_that_cannot_grow_stays_as_it_is():
    head = TrimmedHead(Picked, torch.tensor([5, 6]), [5, 6])
    for _ in range(20):
        head.add_later(range(40))
        head.add(range(40))
    assert head.tokens.tolist() == [5, 6]


def test_torchs_head_grows_while_a_pass_is_taken_in_and_after_it():
    head, rows = TorchHead(lambda states: states), torch.eye(12)
    with torch.inference_mode():
        head.append(rows[:8])
        head.append(rows[8:9])  # which makes room for one more
    head.append(rows[9:10])
    head.append(rows[10:])
    assert torch.equal(head.scores(rows).logits, rows)


HEADS = {
    "torch": (lambda: TorchHead(lambda states: states), lambda head: head._room.data_ptr()),
    "native": (
        lambda: NativeHead(small_network_kernels(), torch.ones(64), 1e-5),
        lambda head: (head._blocks.data_ptr(), head.as_c.head.data),
    ),
    "picked": (PickedLogits, lambda head: id(head._tokens)),
}


@pytest.mark.parametrize("kind", HEADS)
def test_texts_have_the_frequent_rows_of_a_head_in_common_and_their_own_alone(kind):
    if kind == "native" and not native_works():
        pytest.skip("the kernels cannot be built here")
    product, place = HEADS[kind]
    rows: Any = list(range(21)) if kind == "picked" else torch.randn(21, 64)
    states = torch.randn(3, 64)

    def head():
        return TrimmedHead(product, torch.arange(9), rows[:9], list if kind == "picked" else lambda some: rows[some])

    def scores(head):
        return head.product.scores(states).logits.clone()

    first = head()
    texts = [first.for_another_text() for _ in range(3)]
    assert {place(text.product) for text in texts} == {place(first.product)}
    said = scores(texts[2])
    for text, tokens in ((0, [12, 14]), (1, [20]), (0, [9])):
        texts[text].add(tokens)
    assert [text.tokens[9:].tolist() for text in texts] == [[12, 14, 9], [20], []]
    assert len({place(text.product) for text in texts}) == 3
    assert torch.equal(scores(texts[2]), said)
    for text in texts:
        alone = head()
        alone.add(text.tokens[9:].tolist())
        assert torch.equal(scores(text), scores(alone))
