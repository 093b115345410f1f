"""The target with a part of its cache: never wrong where the part is all, worse with less, and an engine of its own."""

from __future__ import annotations

import pytest
from contracts.kit import V, cached_says, collect, converse, reply, scripted_draft, scripted_target
from contracts.models import BUILDERS, shared_network
from contracts.models import V as NETWORK_V

from specchat.decoding.assemble import nested_engines
from specchat.drafters.choice import choose
from specchat.drafters.parts import Parts
from specchat.errors import CombinationError, UsageError
from specchat.models.backends.scripted import ScriptedModel, random_says
from specchat.settings import Settings

CHAIN = {"drafter": "sparse_context", "policy": "chain", "controller": "fixed", "width": 1, "depth": 4, "nodes": 4}
LONG = [(7 * i + i // 13) % 20 + 3 for i in range(400)]


def options(**given):
    return {"method_options": {f"sparse_context.{name}": value for name, value in given.items()}}


def far_sighted(memory):
    """A target that looks so many tokens back."""
    return ScriptedModel(V, cached_says(random_says(V, 4, memory, 2.5), memory))


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("path", list(BUILDERS))
def test_with_a_budget_for_the_whole_text_every_guess_is_right(path, temperature):
    model = BUILDERS[path](shared_network("llama"), 512)
    said = collect(
        converse(model, temperature=temperature, max_tokens=30, **CHAIN, **options(budget=512)).reply(LONG[:60], 7)
    )
    assert said.ledger.accepted == said.ledger.drafted > 20
    assert max(said.tokens) < NETWORK_V


def test_acceptance_falls_with_the_budget_where_what_lies_far_back_matters():
    rates = []
    for budget in (512, 200, 64):
        said = reply(far_sighted(120), prompt=LONG, max_tokens=60, **CHAIN, **options(budget=budget, below="none"))
        rates.append(said.ledger.acceptance_rate)
        assert said.tokens == reply(far_sighted(120), prompt=LONG, max_tokens=60, controller="off").tokens
    assert rates[0] == 1.0
    assert rates[0] > rates[1]
    assert rates[2] < 0.3
    near = reply(far_sighted(8), prompt=LONG, max_tokens=60, **CHAIN, **options(budget=64, below="none"))
    assert near.ledger.acceptance_rate == 1.0, "what is needed is kept"


def drafter_over(target, **given):
    settings = Settings().but(options(**given))
    parts = Parts(target, scripted_draft(), label="0", make_engine=nested_engines(settings))
    return parts.build(choose("sparse_context", settings))


def test_it_reads_nothing_of_a_text_that_the_target_holds_and_sees_no_more_than_its_budget():
    target = BUILDERS["decoder"](shared_network("llama"), 1024)
    target.prefill(LONG[:-1])
    drafter = drafter_over(target, budget=64)
    drafter.start(LONG)
    assert (drafter.passes, drafter._view.counters.rows) == (1, 1), "one row of the target asks what to keep"
    assert drafter._view.cached(LONG) == len(LONG) - 1
    assert drafter._view.rows.held <= 64


def counting(function, calls):
    """The same function, which also notes its calls."""

    def counted(*arguments, **named):
        calls.append(arguments)
        return function(*arguments, **named)

    return counted


def test_the_part_is_chosen_anew_as_the_text_grows():
    said = {}
    for refresh in (8, 1000):
        conversation = converse(far_sighted(4), max_tokens=64, **CHAIN, **options(budget=64, refresh=refresh))
        part, chosen = conversation.speculator.drafter._part, []
        part.copy_rows_from = counting(part.copy_rows_from, chosen)
        said[refresh] = collect(conversation.reply(LONG, 7)).tokens, len(chosen)
    assert said[8][0] == said[1000][0]
    assert said[1000][1] == 1
    assert 5 <= said[8][1] <= 9


def test_the_inner_engine_writes_several_tokens_in_a_pass():
    """The scripted draft model agrees with the target, so the sparse target takes its guesses by threes."""
    passes = {}
    for below in ("none", "draft_model"):
        conversation = converse(
            scripted_target(), scripted_target(), max_tokens=60, **CHAIN, **options(budget=64, below=below, ahead=3)
        )
        said = collect(conversation.reply(LONG[:50], 7))
        passes[below] = conversation.speculator.drafter._view.counters.passes
        assert said.ledger.acceptance_rate == 1.0
    assert passes["draft_model"] < passes["none"] / 2


def test_a_draft_model_below_is_asked_of_the_pair_and_only_one_drafter_may_stand_there():
    with pytest.raises(CombinationError, match="'draft_model' needs a draft model"):
        converse(scripted_target(), **CHAIN, **options(below="draft_model"))
    with pytest.raises(UsageError, match="must be one drafter"):
        converse(scripted_target(), **CHAIN, **options(below="suffix,prompt_lookup"))
    with pytest.raises(UsageError, match="made of itself"):
        converse(scripted_target(), **CHAIN, **options(below="sparse_context"))


def test_beside_what_is_written_stand_the_next_likeliest():
    said = reply(scripted_target(), prompt=LONG, max_tokens=40, drafter="sparse_context", policy="best_first",
                 controller="fixed", width=3, depth=3, nodes=9, temperature=0.9)  # fmt: skip
    assert any(len(round.tree.children(0)) > 1 for round in said.rounds)
    assert said.tokens == reply(scripted_target(), prompt=LONG, max_tokens=40, controller="off", temperature=0.9).tokens


@pytest.mark.parametrize("below", ["layer_skip", "early_exit"])
@pytest.mark.parametrize("path", list(BUILDERS))
def test_views_of_the_target_with_a_part_draft_below_it(path, below):
    """What they borrow is what the part holds."""
    model = BUILDERS[path](shared_network("llama"), 512)
    said = collect(
        converse(model, max_tokens=12, **CHAIN, **options(budget=64, refresh=8, below=below)).reply(LONG[:200], 7)
    )
    assert len(said.tokens) == 12
