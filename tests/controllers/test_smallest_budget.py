"""Several controllers at once: the smallest budget holds, all of them learn, and what makes no sense is refused."""

from __future__ import annotations

import pytest
from contracts.kit import Always, context_for, converse, reply, scripted_draft, scripted_target
from hypothesis import given
from hypothesis import strategies as st

from specchat.controllers import choose_controllers
from specchat.controllers.combined import SmallestBudget
from specchat.core.budget import Budget, smaller
from specchat.errors import UsageError
from specchat.settings import Settings

budgets = st.builds(
    Budget,
    st.integers(0, 12),
    st.integers(0, 8),
    st.integers(0, 4),
    st.lists(st.floats(0.0, 1.0), max_size=4).map(lambda prices: tuple(sorted(prices))),
    passes=st.booleans(),
    search=st.booleans(),
)


@given(budgets, budgets)
def test_the_smaller_budget_allows_what_both_allow(first, second):
    both = smaller(first, second)
    assert both == smaller(second, first)
    assert (both.nodes, both.depth, both.width) == tuple(
        min(getattr(first, name), getattr(second, name)) for name in ("nodes", "depth", "width")
    )
    for node in range(1, 14):
        assert both.price(node) == max(first.price(node), second.price(node))
    assert both.passes == (first.passes and second.passes)
    assert both.search == (first.search or second.search), "what one does not ask for it does not forbid"
    assert smaller(first, first) == first


def test_its_reason_is_that_of_the_controller_that_allows_less():
    roomy, tight = Budget(8, 4, 2, why="roomy"), Budget(2, 4, 2, why="tight")
    assert SmallestBudget([Always(roomy), Always(tight)]).plan(context_for()).why == "tight"
    assert SmallestBudget([Always(tight), Always(roomy)]).plan(context_for()).why == "tight"


def test_all_of_them_observe_every_round():
    seen = []

    class Watching(Always):
        def observe(self, round):
            seen.append((self, round.index))

    one, other = Watching(Budget(2, 2, 1)), Watching(Budget(4, 4, 1))
    conversation = converse(scripted_target(), max_tokens=3)
    conversation.speculator.controller = SmallestBudget([one, other])
    list(conversation.reply([3, 5, 7], 7))
    assert [who for who, _ in seen[:2]] == [one, other]
    assert len(seen) % 2 == 0


def test_a_limit_of_memory_brings_its_controller_along():
    def names(**settings):
        return [method.name for method in choose_controllers(Settings().but(settings))]

    assert names(controller="goodput+memory") == ["goodput", "memory"]
    assert names(controller="goodput", memory="2GB") == ["goodput", "memory"]
    assert names(controller=" memory + goodput", memory="2GB") == ["memory", "goodput"]
    assert names(controller="off", memory="2GB") == ["off"]


@pytest.mark.parametrize(
    ("controller", "said"),
    [("goodput+memry", "memory"), ("goodput+", "is called"), ("fixed+fixed", "twice"), ("off+goodput", "never")],
)
def test_what_cannot_be_combined_is_refused_by_name(controller, said):
    with pytest.raises(UsageError, match=said):
        converse(scripted_target(), controller=controller)


def test_a_reply_under_several_controllers_keeps_to_all_of_them():
    said = reply(scripted_target(), scripted_draft(), drafter="draft_model", controller="fixed+goodput", max_tokens=30,
                 nodes=3, depth=3, width=1)  # fmt: skip
    assert said.tokens == reply(scripted_target(), controller="off", max_tokens=30).tokens
    assert all(round.tree.drafted <= 3 for round in said.rounds)
