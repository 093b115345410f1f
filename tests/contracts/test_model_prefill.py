"""What every `Model` promises of its prefix: each token is read once, and an edit is read from there on."""

from __future__ import annotations

import pytest
from contracts.kit import random_tree
from contracts.model_checks import PREFIX, check, check_next, deepest
from contracts.models import V, each_model, each_network, every_model, models_with
from rows import each_row

from specchat.core.tree import ROOT, Guess, TokenTree
from specchat.models.decoder import kv_cache
from specchat.models.decoder.cache_rows import LAZY_TOKENS


@models_with("prompt_tokens", [1, LAZY_TOKENS, LAZY_TOKENS + 1, 100])
def test_every_token_is_read_once(subject, prompt_tokens):
    text = [(7 * i) % V for i in range(prompt_tokens + 1)]
    subject.model.prefill(text[:-1])
    subject.model.read(random_tree(V, 5, 0, root=text[-1]))
    assert subject.model.counters.rows == prompt_tokens + 6
    assert subject.model.counters.node_layers == subject.layers * (prompt_tokens + 6)


@each_model
def test_a_prefix_that_is_there_is_not_read_again(subject):
    first = [(7 * i) % V for i in range(60)]
    check_next(subject, subject.model, first)
    before = subject.model.counters.rows
    longer = [*first, *range(20)]
    assert subject.model.cached(longer) == 60
    check_next(subject, subject.model, longer)
    assert subject.model.counters.rows == before + 20


@each_model
def test_an_edited_prefix_is_read_from_the_edit_on(subject):
    first = [(7 * i) % V for i in range(60)]
    check_next(subject, subject.model, first)
    before = subject.model.counters.rows
    edited = [*first[:33], 60, *first[34:]]
    there = 0 if subject.by_borders else 33  # no prompt ended before it
    assert subject.model.cached(edited) == there
    check_next(subject, subject.model, edited)
    assert subject.model.counters.rows == before + 60 - there


@each_model
def test_a_shorter_prefix_forgets_what_lies_behind_it(subject):
    first = [(7 * i) % V for i in range(60)]
    check_next(subject, subject.model, first)
    subject.model.prefill(first[:20])
    assert subject.model.cached(first) == 20
    check_next(subject, subject.model, [*first[:20], 9])


@models_with("count", [0, 1, LAZY_TOKENS // 2, LAZY_TOKENS, LAZY_TOKENS + 1])
def test_a_few_missing_tokens_may_be_put_off_and_are_never_lost(subject, count):
    check_next(subject, subject.model, PREFIX)
    longer = [*PREFIX, *range(20, 20 + count)]
    subject.model.prefill(longer)
    tree = random_tree(V, 7, 5)
    check(subject, subject.model.read(tree), longer, tree, range(len(tree)))
    path = deepest(tree)[:2]
    subject.model.keep(path)
    assert subject.model.cached([*longer, 3, *(tree.tokens[n] for n in path)]) == len(longer) + 3
    check_next(subject, subject.model, [*longer, 3, *(tree.tokens[n] for n in path), 17])


@each_model
def test_tokens_put_off_twice_are_read_once(subject):
    check_next(subject, subject.model, PREFIX)
    before = subject.model.counters.rows
    subject.model.prefill([*PREFIX, 21, 22])
    subject.model.prefill([*PREFIX, 21, 23, 24])
    check_next(subject, subject.model, [*PREFIX, 21, 23, 24, 25])
    assert subject.model.counters.rows == before + 4


@each_model
def test_a_short_text_may_come_before_a_long_one(subject):
    check_next(subject, subject.model, [5, 6, 7])
    check_next(subject, subject.model, [(3 * i) % V for i in range(90)])
    check_next(subject, subject.model, [5, 6, 7, 8])


@each_network
def test_reading_leaves_no_trace_for_training(subject):
    subject.model.prefill(list(range(30)))
    reading = subject.model.read(random_tree(V, 4, 0))
    assert not reading.logits.requires_grad


@each_model
def test_progress_is_told_and_may_stop_the_reading(subject):
    text = [(7 * i) % V for i in range(200)]
    heard: list[tuple[int, int]] = []
    subject.model.prefill(text, lambda done, total: heard.append((done, total)))
    assert heard[-1] == (200, 200)
    assert [done for done, _ in heard] == sorted(done for done, _ in heard)

    class Enough(Exception):
        pass

    def stop(done: int, total: int) -> None:
        raise Enough

    other = [(11 * i + 1) % V for i in range(200)]
    with pytest.raises(Enough):
        subject.model.prefill(other, stop)
    check_next(subject, subject.model, other)


@each_row(
    ("choice", "rows"),
    [(row.values[0], rows) for row in every_model() for rows in (256, 1024) if rows == 256 or "llama" in row.id],
)
def test_the_cache_grows_past_its_first_capacity(choice, rows, monkeypatch):
    """One network of each path has as many rows first as it really has."""
    monkeypatch.setattr(kv_cache, "_FIRST_CAPACITY", rows)
    factory, family = choice
    subject = factory(family, 2 * rows)
    text = [(7 * i + i // 13) % V for i in range(rows - 4)]
    check_next(subject, subject.model, text)
    tree = random_tree(V, 20, 6)  # reaches over the last row in the middle of a round
    subject.model.prefill(text)
    check(subject, subject.model.read(tree), text, tree, range(0, len(tree), 8))
    path = deepest(tree)
    subject.model.keep(path)
    check_next(subject, subject.model, [*text, 3, *(tree.tokens[n] for n in path), 8])


@each_model
def test_a_tree_may_reach_past_the_end_of_the_context(subject):
    text = [(7 * i) % V for i in range(subject.model.context_tokens - 2)]
    subject.model.prefill(text)
    assert len(subject.model.read(random_tree(V, 30, 0)).alive) == 31


@each_model
def test_pretending_costs_like_reading_and_is_forgotten(subject):
    subject.model.fill_for_benchmark(40)
    before = subject.model.counters.rows
    subject.model.read(TokenTree(3, V).freeze())
    subject.model.keep(())
    assert subject.model.counters.rows == before + 1
    assert subject.model.cached(PREFIX) == 0
    check_next(subject, subject.model, PREFIX)


@each_network
def test_positions_are_those_of_the_text_and_not_of_the_rows(subject):
    """In a wide tree the last node's row lies far behind its position; with the row's number it would say otherwise."""
    tree = TokenTree(3, V)
    nodes = [tree.add(ROOT, Guess(token)) for token in range(20)]
    subject.model.prefill(PREFIX)
    reading = subject.model.read(tree)
    check(subject, reading, PREFIX, tree, [nodes[-1]])
