"""What every controller of the table promises: a budget that makes sense, before and after it has seen rounds."""

from __future__ import annotations

import pytest
from contracts.kit import (
    Reply,
    context_for,
    every,
    make_controller,
    make_policy,
    make_rule,
    reply,
    scripted_draft,
    scripted_target,
    speak,
)
from contracts.proposing import Proposing, counting_up

from specchat.acceptance import ACCEPTANCE_RULES
from specchat.controllers import CONTROLLERS
from specchat.core.budget import Budget
from specchat.decoding.speculate import Speculator
from specchat.trees import TREE_POLICIES

pytestmark = pytest.mark.parametrize("method", every(CONTROLLERS))


def sane(budget: Budget) -> bool:
    return 0 <= budget.nodes <= 512 and budget.depth >= 0 and budget.width >= 0


@pytest.mark.parametrize("given", [Budget(16, 6, 2), Budget(1, 1, 1), Budget(0, 6, 2)], ids=str)
def test_every_plan_is_a_budget_that_can_be_grown(method, given):
    controller = make_controller(method, given)
    speculator = Speculator(
        scripted_target(),
        Proposing(counting_up),
        make_policy(TREE_POLICIES["expansion"]),
        make_rule(ACCEPTANCE_RULES["follow"]),
        controller,
    )
    context = context_for()
    assert sane(controller.plan(context))
    _, rounds = speak(speculator, 12, context)
    assert all(sane(round.budget) for round in rounds)
    assert all(round.tree.drafted <= round.budget.nodes for round in rounds)
    assert sane(controller.plan(context))


def test_a_user_who_allows_no_nodes_gets_plain_decoding(method):
    said: Reply = reply(
        scripted_target(), scripted_draft(), controller=method.name, drafter="draft_model", nodes=0, max_tokens=10
    )
    assert said.ledger.drafted == 0
    assert said.ledger.rounds == 10


def test_planning_twice_does_not_use_anything_up(method):
    controller, context = make_controller(method, Budget(8, 4, 2)), context_for()
    assert controller.plan(context) == controller.plan(context)
