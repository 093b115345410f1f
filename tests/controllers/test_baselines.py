"""`off` never speculates, and `fixed` does what the user said, whatever rounds showed."""

from __future__ import annotations

import dataclasses

from contracts.kit import context_for, make_controller, reply, scripted_draft, scripted_target

from specchat.controllers import CONTROLLERS
from specchat.core.budget import Budget


def test_off_plans_no_nodes_and_no_draft_model_runs():
    assert make_controller(CONTROLLERS["off"], Budget(16, 4, 2)).plan(context_for()).nodes == 0
    draft = scripted_draft()
    said = reply(scripted_target(), draft, controller="off", drafter="draft_model", max_tokens=10)
    assert said.ledger.rounds == 10
    assert said.ledger.drafted == draft.counters.passes == 0


def test_fixed_plans_what_the_user_said():
    given = Budget(7, 4, 2)
    assert dataclasses.replace(make_controller(CONTROLLERS["fixed"], given).plan(context_for()), why="") == given
