"""A draft model may end before the text does: it proposes nothing beyond its context, and replies go on."""

from __future__ import annotations

import itertools
from functools import cache

import pytest
from contracts.covering import covering
from contracts.kit import (
    PROMPT,
    Always,
    V,
    context_for,
    draft_says,
    every,
    looks_up,
    make_drafter,
    make_policy,
    make_rule,
    plain_text,
    scripted_target,
    speak,
)
from rows import each_row

from specchat.acceptance import ACCEPTANCE_RULES
from specchat.core.budget import Budget
from specchat.decoding.speculate import Speculator
from specchat.drafters import DRAFTERS
from specchat.models.backends.scripted import ScriptedModel
from specchat.trees import TREE_POLICIES

READING = [drafter for drafter in every(DRAFTERS) if drafter.values[0].needs_draft_model]
OTHERS = [drafter for drafter in every(DRAFTERS) if drafter not in READING]
"""Drafters that do without a draft model."""


@each_row(
    ("method", "policy", "wrapped"),
    [
        *covering(READING, every(TREE_POLICIES), [pytest.param(False, id="alone"), pytest.param(True, id="merged")]),
        *(
            pytest.param(*drafter.values, *policy.values, number % 2 > 0, id=f"{drafter.id}-{policy.id}")
            for number, (drafter, policy) in enumerate(zip(OTHERS, itertools.cycle(every(TREE_POLICIES)), strict=False))
        ),
    ],
)
def test_a_draft_model_with_a_shorter_context_proposes_nothing_beyond_its_end(method, policy, wrapped):
    """And replies go on past it, also one that begins there."""
    end = len(PROMPT) + 9
    if wrapped and method.name == "merge":
        pytest.skip("merge cannot be merged")
    draft = ShortSighted(end)
    chosen = DRAFTERS["merge"] if wrapped else method
    drafter = make_drafter(chosen, draft, **({"of": method.name} if wrapped else {}))
    parts = (drafter, make_policy(policy), make_rule(ACCEPTANCE_RULES["follow"]), Always(Budget(6, 4, 2)))
    target, context = scripted_target(), context_for()
    emitted, rounds = speak(Speculator(target, *parts), 14, context)
    assert emitted == plain()
    if method.needs_draft_model and not looks_up(method):
        depths = [round.start + max(round.tree.depths) for round in rounds]
        assert max(depth for depth, round in zip(depths, rounds, strict=True) if round.tree.drafted) == end + 1
    again, _ = speak(Speculator(target, *parts), 2, context_for(prompt=context.history))
    assert len(again) == 2


@cache
def plain():
    return plain_text(scripted_target(), 14)


class ShortSighted(ScriptedModel):
    """A draft model that has no positions beyond its context, as a real one has none."""

    def __init__(self, context_tokens: int) -> None:
        super().__init__(V, draft_says(), context_tokens)

    def prefill(self, tokens, on_chunk=None) -> None:
        assert len(tokens) <= self.context_tokens, "the prefix goes beyond the end"
        super().prefill(tokens, on_chunk)

    def read(self, tree, new_nodes=None, *arguments, **named):
        last = len(self.rows.prefix) + len(self.rows._missing) + max(tree.depths[node] for node in new_nodes)
        assert last < self.context_tokens, f"position {last} is beyond the end"
        return super().read(tree, new_nodes, *arguments, **named)
