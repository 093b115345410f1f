"""Drafting from an early layer: shadow tokens tell the truth, and the choice of exit and length follows them."""

from __future__ import annotations

import itertools

import pytest
import torch
from contracts.kit import PROMPT, collect, converse
from contracts.models import BUILDERS, shared_network

from specchat.core.budget import Budget
from specchat.core.tree import ROOT, TokenTree
from specchat.drafters import early_exit
from specchat.drafters.early_exit import LONGEST, ExitRecord, ShadowTokens, exits_of

TREE = {"policy": "chain", "controller": "fixed", "nodes": 4, "depth": 4, "temperature": 0.0, "max_tokens": 40}
LAYERS, EXITS, V = 12, (2, 5, 8), 7


@pytest.fixture(params=sorted({"decoder", "native"} & set(BUILDERS)))
def build(request):
    """Models of one path over the same weights. That views agree on all paths is the view contract's to show."""
    return lambda: BUILDERS[request.param](shared_network("llama"), 512)


def conversed(target, **settings):
    """A reply, and the drafter that was in use, which weighs all tokens alike."""
    options = {"early_exit.decay": 0.999, **settings.pop("method_options", {})}
    conversation = converse(target, None, **{**TREE, "drafter": "early_exit", "method_options": options, **settings})
    said = collect(conversation.reply(PROMPT, 7))
    return said, conversation.speculator.drafter


def test_shadow_tokens_are_right_as_often_as_really_drafting_at_that_exit(build, monkeypatch):
    monkeypatch.setattr(early_exit, "_LOOK_EVERY", 0)
    target = build()
    said, drafter = conversed(target, max_tokens=16)
    text = [*PROMPT, *said.tokens]
    for layer in (0, 1):
        view, expected = target.view(layers=range(layer + 1)), ExitRecord()
        target.prefill(text)
        target.read(TokenTree(3, target.vocab_size).freeze())
        for end in range(len(PROMPT), len(text)):
            view.copy_rows_from(text[: end - 1], range(end - 1))
            logits = view.read(TokenTree(text[end - 1], view.vocab_size).freeze()).after(ROOT)
            view.prefill([])
            right, probability = int(logits.argmax()) == text[end], float(logits.softmax(dim=-1).max())
            expected.add(right, probability, 0.999)
        found = drafter.shadows.records[layer]
        assert found.rate == pytest.approx(expected.rate)
        assert found.seen == pytest.approx(expected.seen)
        assert found.threshold == pytest.approx(expected.threshold, rel=1e-3)


def test_it_computes_the_first_layers_alone_and_never_reads_the_text_again(build):
    target = build()
    views = []
    of_target = target.view
    target.view = lambda **parts: (views.append((len(parts["layers"]), of_target(**parts))), views[-1][1])[1]
    said, drafter = conversed(target)
    assert drafter.passes == said.ledger.draft_passes > 0
    for layers, view in views:
        assert view.counters.node_layers == view.counters.rows * layers
    rows = sum(view.counters.rows for _, view in views)
    assert rows <= sum(round.tree.drafted for round in said.rounds) + len(PROMPT)
    assert target.counters.passes == len(said.rounds), "shadow tokens cost no pass"


def test_while_no_draft_pays_the_exits_are_looked_at_in_few_rounds():
    settings = {**TREE, "drafter": "early_exit", "max_tokens": 30}
    conversation = converse(BUILDERS["decoder"](shared_network("llama"), 512), None, **settings)
    drafter = conversation.speculator.drafter
    for record in drafter.shadows.records.values():
        record.seen = 1e6
    rounds = collect(conversation.reply(PROMPT, 7)).rounds
    assert all(round.tree.drafted == 0 for round in rounds[1:])
    assert [bool(round.reading.taps) for round in rounds[:12]] == [True, *[False] * 8, True, False, False]


def shadows(right: dict[int, float], tokens: int, known: ShadowTokens | None = None) -> ShadowTokens:
    """Exits that are right in such a share of the tokens."""
    known = known or ShadowTokens(EXITS, LAYERS, 0.95)
    for token in range(tokens):
        logits = torch.zeros(len(EXITS), 1, V)
        for row, layer in enumerate(EXITS):
            logits[row, 0, 1 if (token * right[layer]) % 1.0 < right[layer] else 2] = 5.0
        known.add(logits, [1])
    return known


def test_the_choice_has_the_most_tokens_per_layer_of_all():
    known = shadows({2: 0.5, 5: 0.8, 8: 0.95}, 200)
    rates = {layer: known.records[layer].rate for layer in EXITS}

    def worth(layer: int, length: int) -> float:
        expected = sum(rates[layer] ** k for k in range(length + 1))
        return expected / (length * (layer + 1) + LAYERS)

    best = max(itertools.product(EXITS, range(LONGEST + 1)), key=lambda choice: worth(*choice))
    assert known.best_exit() == best[0]
    for layer in EXITS:
        length = max(range(LONGEST + 1), key=lambda some: worth(layer, some))
        assert known.best_length(layer) == (pytest.approx(worth(layer, length)), length)


def test_where_no_exit_is_right_often_enough_nothing_is_drafted():
    known = shadows({2: 0.05, 5: 0.1, 8: 0.2}, 100)
    assert known.best_length(known.best_exit())[1] == 0


def test_another_kind_of_text_changes_exit_and_length():
    known = shadows({2: 0.9, 5: 0.9, 8: 0.9}, 100)
    assert known.best_exit() == 2
    length = known.best_length(2)[1]
    shadows({2: 0.1, 5: 0.75, 8: 0.8}, 100, known)
    assert known.best_exit() == 5
    assert length > known.best_length(5)[1] > 0
    shadows({2: 0.9, 5: 0.9, 8: 0.9}, 200, known)
    assert known.best_exit() == 2


def test_the_threshold_lies_between_right_and_wrong_guesses():
    record = ExitRecord()
    for right, probability in [(True, 0.9), (False, 0.3)] * 20:
        record.add(right, probability, 0.95)
    assert record.threshold == pytest.approx(0.6)
    only = ExitRecord()
    for _ in range(20):
        only.add(True, 0.9, 0.95)
    assert only.threshold == 0.0, "nothing was wrong yet"


@pytest.mark.parametrize(("layers", "count", "expected"), [(30, 5, (2, 8, 14, 20, 26)), (3, 8, (0, 1)), (1, 8, (0,))])
def test_exits_lie_at_equal_distances_before_the_last_layer(layers, count, expected):
    assert exits_of(layers, count) == expected


def test_the_drafter_changes_its_exit_between_rounds(build):
    target = build()
    _, drafter = conversed(target, max_tokens=4)
    for layer, record in drafter.shadows.records.items():
        record.right, record.seen = (0.0 if layer == 1 else 20.0), 20.0
    drafter._choose()
    assert (drafter.exit, drafter.length > 0) == (0, True)
    for record in drafter.shadows.records.values():
        record.right = 0.0
    drafter._choose()
    assert drafter.length == 0
    assert drafter.view is not target


def test_rounds_without_passes_ask_for_no_states(build):
    """A controller that lets it rest pays nothing for its shadow tokens."""
    conversation = converse(build(), None, **{**TREE, "drafter": "early_exit"})
    speculator = conversation.speculator
    tree = TokenTree(3, 5).freeze()
    assert speculator.request(tree, Budget(4)).taps
    assert not speculator.request(tree, Budget(4, passes=False)).taps
    assert not speculator.request(tree, Budget(0)).taps
