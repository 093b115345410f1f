"""A merge's members: which it takes, and what it hands on to them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from contracts.kit import (
    PROMPT,
    V,
    context_for,
    fixed_speculator,
    scripted_target,
    speak,
)
from test_merge import ask, build, of, play

from specchat.core.budget import Budget
from specchat.core.request import ExtraRow
from specchat.core.seams import Drafter
from specchat.core.tree import ROOT, TokenTree
from specchat.errors import UsageError


class Riding(Drafter):
    """Attaches so many extra rows, in a chain, and keeps what it is given back."""

    taps = ()
    passes = 3

    def __init__(self, layer, count, mark):
        self.taps = (layer, 7)
        self.started, self.seen = [], None
        self._riders = [ExtraRow(ROOT, torch.tensor([mark]), after=i - 1 if i else None) for i in range(count)]

    def start(self, history):
        self.started.append(list(history))

    def propose(self, tree, frontier, width, context):
        return [() for _ in frontier]

    def extra_rows(self, tree):
        return self._riders

    def observe(self, round):
        self.seen = round.reading


def test_riders_taps_passes_and_start_are_those_of_all_members():
    first, second = Riding(1, 2, 1.0), Riding(4, 3, 2.0)
    merged = of(first, second)
    merged.start([1, 2])
    assert first.started == second.started == [[1, 2]]
    assert list(merged.taps) == [1, 4, 7]
    assert merged.passes == 6
    extra_rows = merged.extra_rows(TokenTree(3, V).freeze())
    assert [float(extra_row.embedding[0]) for extra_row in extra_rows] == [1, 1, 2, 2, 2]
    assert [extra_row.after for extra_row in extra_rows] == [None, 0, None, 2, 3]


def test_every_member_sees_the_rows_of_its_own_riders():
    first, second = Riding(1, 2, 1.0), Riding(4, 3, 2.0)
    merged, tree = of(first, second), TokenTree(PROMPT[-1], V).freeze()
    merged.extra_rows(tree)
    rows = torch.arange(5.0)[:, None].expand(5, V)
    play(merged, tree, [2], extra_row_logits=rows, extra_row_states={4: rows * 10}, extra_row_likeliest=rows.int())
    assert first.seen.extra_row_logits[:, 0].tolist() == [0, 1]
    assert second.seen.extra_row_logits[:, 0].tolist() == [2, 3, 4]
    assert second.seen.extra_row_states[4][:, 0].tolist() == [20, 30, 40]
    assert second.seen.extra_row_likeliest[:, 0].tolist() == [2, 3, 4]


def test_members_learn():
    merged = build("merge", of="suffix,token_recycling")
    context = context_for()
    _, rounds = speak(fixed_speculator(scripted_target(), merged, "best_first", Budget(8, 4, 4)), 200, context)
    proposers = {d.guess.proposer for r in rounds for n in range(len(r.tree)) for d in r.tree.draws(n)}
    assert proposers == {"suffix", "token_recycling", "suffix+token_recycling"}


# ---------------------------------------------------------------------------------------- members


def test_members_get_their_own_options():
    merged = build("merge", of="suffix", **{"suffix.factor": 0.0, "suffix.offset": 0})
    history = [1, 2, 3, 1, 2]
    merged.start(history)
    assert ask(merged, context=context_for(prompt=history)) == []
    default = build("merge", of="suffix")
    default.start(history)
    assert [guess.token for guess in ask(default, context=context_for(prompt=history))] == [3]


@pytest.mark.parametrize(
    ("named", "words"),
    [
        ("suffix,merge", "a drafter cannot be made of itself: merge → merge"),
        ("suffix,suffix", "merge names suffix twice with the same options"),
        ("suffix,suffix(depth=64)", "merge names suffix twice with the same options"),
        ("", "names no drafter; it must be written like suffix,token_recycling"),
        ("sufix", "no drafter is called 'sufix'; did you mean 'suffix'"),
    ],
)
def test_members_that_cannot_be_are_refused(named, words):
    with pytest.raises(UsageError, match=words):
        build("merge", of=named)


def test_a_round_is_handed_on_unchanged_but_for_riders():
    member = Riding(1, 0, 0.0)
    merged, tree = of(member), TokenTree(PROMPT[-1], V).freeze()
    play(merged, tree, [2])
    assert member.seen is not None
    assert replace(member.seen) == member.seen or torch.equal(member.seen.logits, torch.zeros(1, V))
