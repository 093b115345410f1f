"""The controller `search` gives a drafter time within replies, and no more than its share."""

from __future__ import annotations

import pytest
from contracts.kit import PROMPT, collect, converse
from contracts.models import BUILDERS, shared_network

from specchat.controllers.fixed import Search
from specchat.controllers.options import SearchOptions
from specchat.core.budget import Budget
from specchat.core.reading import HeadTensors, Reading
from specchat.core.round import Round, RoundTimings, Verdict
from specchat.core.tree import TokenTree


def round_of(budget: Budget, learn_s: float) -> Round:
    tree = TokenTree(3, 9).freeze()
    reading = Reading((0,), HeadTensors(None), frozenset({0}))
    timings = RoundTimings(draft_s=0.25, verify_s=0.5, other_s=0.25 + learn_s, learn_s=learn_s)
    return Round(0, 1, [3], budget, tree, reading, Verdict((), 4, tree), (4,), timings=timings)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5])
def test_searching_takes_its_share_of_the_time_and_no_more_than_one_trial_beyond(share):
    controller = Search(SearchOptions(share), Budget(4, 2, 2))
    searching_s, all_s = 0.0, 0.0
    for _ in range(400):
        budget = controller.plan(None)
        assert (budget.nodes, budget.depth, budget.width) == (4, 2, 2)
        learn_s = 3.0 if budget.search else 0.0
        controller.observe(round_of(budget, learn_s))
        searching_s, all_s = searching_s + learn_s, all_s + 1.0 + learn_s
        assert searching_s <= share * all_s + 3.0
    assert searching_s / all_s == pytest.approx(share, abs=0.02)


def test_a_drafter_searches_within_a_reply_only_under_this_controller():
    options = {"layer_skip.window": 4, "layer_skip.ratio": 0.17, "search.share": 1.0}
    chosen = {"drafter": "layer_skip", "nodes": 2, "depth": 2, "temperature": 0.0, "method_options": options}
    trials, texts = {}, []
    for controller in ("search", "fixed"):
        target = BUILDERS["decoder"](shared_network("llama"), 256)
        conversation = converse(target, None, controller=controller, max_tokens=30, **chosen)
        texts.append(collect(conversation.reply(PROMPT, 7)).tokens)
        trials[controller] = conversation.speculator.drafter.search.trials
    assert trials["fixed"] == 0 < trials["search"]
    assert texts[0] == texts[1]
