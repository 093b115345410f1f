"""Drafters and rules look at no more of the target's readings than they say: what they leave out is not computed."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
from contracts.kit import (
    Always,
    V,
    context_for,
    every,
    make_drafter,
    make_policy,
    make_rule,
    plain_text,
    scripted_draft,
    scripted_target,
    speak,
)
from rows import each_row
from torch import Tensor

from specchat.acceptance import ACCEPTANCE_RULES
from specchat.core.budget import Budget
from specchat.core.reading import Reading
from specchat.core.request import EVERYTHING, FIRST, LIKELIEST, LOGITS, HeadNeeds
from specchat.core.sampling import Sampling
from specchat.core.seams import Model
from specchat.core.tree import DrawKind
from specchat.decoding.speculate import Speculator
from specchat.drafters import DRAFTERS
from specchat.drafters.token_recycling import TokenRecycling
from specchat.trees import TREE_POLICIES

SAMPLINGS = {
    "greedy": Sampling(),
    "penalised": Sampling(repetition_penalty=1.4, presence_penalty=0.3),
    "warm": Sampling(temperature=0.8),
}
LENGTH = 12
ALL_SAMPLINGS = pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS.keys())


class Heard:
    """A `HeadOutput` that says everything, and notes what was asked for beyond what is needed."""

    logsumexp = highest = tokens = log_probabilities = row_in_memory = None

    def __init__(self, logits: Tensor, needs: HeadNeeds, beyond: list[str]) -> None:
        self._logits, self._needs, self._beyond = logits, needs, beyond

    @property
    def logits(self) -> Tensor:
        if not self._needs.logits:
            self._beyond.append("logits")
        return self._logits

    @property
    def likeliest(self) -> Tensor:
        if not self._needs.likeliest:
            self._beyond.append("likeliest")
        return self._logits.argsort(dim=-1, descending=True, stable=True)

    @property
    def first(self) -> Sequence[int]:
        said: list[int] = self._logits.argmax(dim=-1).tolist()
        return said


class Overheard:
    """A target whose readings note what is asked of them beyond what the request needs."""

    def __init__(self, target: Model) -> None:
        self._target = target
        self.beyond: list[str] = []

    def read(self, tree: Any, new_nodes: Any = None, request: Any = None) -> Reading:
        reading = self._target.read(tree, new_nodes, request)
        return dataclasses.replace(reading, said=Heard(reading.logits, request.needs, self.beyond))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)


def overheard(drafter: Any, rule: Any, sampling: Sampling, shown: HeadNeeds = FIRST) -> tuple[Any, list[int]]:
    """The target after a reply, and the reply."""
    target, context = Overheard(scripted_target()), context_for(sampling)
    context.shown = shown
    policy = make_policy(TREE_POLICIES["expansion"])
    tokens, _ = speak(Speculator(target, drafter, policy, rule, Always(Budget(6, 3, 2))), LENGTH, context)  # type: ignore[arg-type]
    return target, tokens


@cache
def plain(sampling: Sampling) -> list[int]:
    return plain_text(scripted_target(), LENGTH, sampling)


@ALL_SAMPLINGS
@each_row("method", every(DRAFTERS))
def test_a_drafter_looks_at_no_more_than_it_says(method, sampling):
    target, tokens = overheard(make_drafter(method, scripted_draft()), make_rule(ACCEPTANCE_RULES["follow"]), sampling)
    assert target.beyond == []
    assert tokens == plain(sampling)


@ALL_SAMPLINGS
@each_row("method", every(ACCEPTANCE_RULES))
def test_a_rule_looks_at_no_more_than_it_says(method, sampling):
    assert overheard(make_drafter(DRAFTERS["suffix"]), make_rule(method), sampling)[0].beyond == []


def test_a_drafter_that_looks_at_more_than_it_says_is_noticed_and_changes_no_text(monkeypatch):
    monkeypatch.setattr(TokenRecycling, "needs", FIRST)
    drafter = make_drafter(DRAFTERS["token_recycling"])
    target, tokens = overheard(drafter, make_rule(ACCEPTANCE_RULES["follow"]), Sampling())
    assert set(target.beyond) == {"likeliest"}
    assert tokens == plain(Sampling())


def requested_needs(drafter: Any, sampling: Sampling, shown: HeadNeeds) -> HeadNeeds:
    """What a round asks of the target's head."""
    context = context_for(sampling)
    context.shown, context.wanted = shown, DrawKind.POINT
    policy, rule = make_policy(TREE_POLICIES["expansion"]), make_rule(ACCEPTANCE_RULES["follow"])
    speculator = Speculator(scripted_target(), drafter, policy, rule, Always(Budget(4, 2, 2)))
    speculator.start(context.history)
    return speculator.propose(context, speculator.plan(context)).request.needs


@pytest.mark.parametrize(
    ("drafter", "sampling", "shown", "needs"),
    [
        ("suffix", "greedy", FIRST, FIRST),
        ("suffix", "greedy", LOGITS, LOGITS),
        ("suffix", "warm", FIRST, LOGITS),
        ("suffix", "penalised", FIRST, LOGITS),
        ("token_recycling", "greedy", FIRST, LIKELIEST),
        ("token_recycling", "warm", FIRST, EVERYTHING),
        ("merge", "greedy", FIRST, LIKELIEST),
    ],
)
def test_a_round_asks_for_what_any_part_or_listener_looks_at(drafter, sampling, shown, needs):
    options = {"of": "suffix+token_recycling"} if drafter == "merge" else {}
    made = make_drafter(DRAFTERS[drafter], scripted_draft(), V, **options)
    assert requested_needs(made, SAMPLINGS[sampling], shown) == needs


@pytest.mark.parametrize("one", [FIRST, LIKELIEST, LOGITS, EVERYTHING])
@pytest.mark.parametrize("other", [FIRST, LIKELIEST, LOGITS, EVERYTHING])
def test_needs_are_joined_part_by_part(one, other):
    joined = one | other
    assert (joined.likeliest, joined.logits) == (one.likeliest or other.likeliest, one.logits or other.logits)
