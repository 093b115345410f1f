"""Drafting with fewer sub-layers: what is computed, what is borrowed, and that trials tell the truth."""

from __future__ import annotations

import time

import pytest
import torch
from contracts.kit import PROMPT, collect, converse
from contracts.models import BUILDERS, shared_network

from specchat.core.tree import ROOT, TokenTree
from specchat.drafters.choice import choose
from specchat.drafters.parts import Parts
from specchat.settings import Settings

TREE = {"policy": "chain", "controller": "fixed", "nodes": 4, "depth": 4, "temperature": 0.0}


@pytest.fixture(params=sorted({"decoder", "native"} & set(BUILDERS)))
def build(request):
    """Models of one path over the same weights. That views agree on all paths is the view contract's to show."""
    return lambda: BUILDERS[request.param](shared_network("llama"), 512)


def conversed(target, count=40, prompt=PROMPT, **settings):
    """A reply, and the drafter that was in use."""
    options = {"layer_skip.window": 16, "layer_skip.sure": 0.0, **settings.pop("method_options", {})}
    changes = {**TREE, "drafter": "layer_skip", "method_options": options, "max_tokens": count, **settings}
    conversation = converse(target, None, **changes)
    said = collect(conversation.reply(prompt, 7))
    return said, conversation.speculator.drafter


def in_the_last_tokens(drafter, view) -> int:
    """How many of the last tokens a view guesses, read one after the other."""
    text, window = list(drafter._text), drafter._window
    right = 0
    view.copy_rows_from(text[: -window - 1], range(len(text) - window - 1))
    for token, following in zip(text[-window - 1 : -1], text[-window:], strict=True):
        tree = TokenTree(token, view.vocab_size).freeze()
        right += int(view.read(tree).after(ROOT).argmax()) == following
        view.keep(())
    return right


def test_a_trial_scores_what_drafting_token_by_token_would_get_right(build):
    target = build()
    _, drafter = conversed(target)
    for left_out in ({}, {"skip_attention": (1,)}, {"skip_mlp": (1,)}, {"layers": (0, 2)}):
        assert drafter.matches(target.view(**left_out)) == in_the_last_tokens(drafter, target.view(**left_out))


def test_the_more_sub_layers_are_kept_the_more_tokens_match(build):
    target = build()
    _, drafter = conversed(target)
    all_kept, one_left_out, two_left_out = (
        drafter.matches(target.view(**left_out)) for left_out in ({}, {"skip_attention": (1,)}, {"layers": (0, 2)})
    )
    assert all_kept == 16
    assert two_left_out <= one_left_out < all_kept


def test_it_computes_only_what_is_kept_and_never_reads_the_text_again(build):
    target = build()
    said, drafter = conversed(target, prompt=PROMPT * 6)
    view = drafter.view
    assert said.ledger.draft_passes == drafter.passes == view.counters.passes > 0
    assert view.counters.node_layers == view.counters.rows * (3 - drafter.search.size / 2)
    assert view.counters.rows <= sum(round.tree.drafted for round in said.rounds)
    assert target.counters.passes == len(said.rounds) + 1, "the prompt's, and one for each round"


def test_rows_that_were_drafted_go_when_the_round_is_over(build):
    target = build()
    said, drafter = conversed(target)
    view, text = drafter.view, list(drafter._text)
    fresh = drafter._view(drafter.search.best)
    fresh.copy_rows_from(text, range(len(text)))
    fresh.prefill(text)
    drafter.start([*text, 5])
    held = view.cached(text)
    assert held == fresh.cached(text) >= len(text) - 2
    tree = TokenTree(5, view.vocab_size).freeze()
    assert torch.equal(view.read(tree).logits, fresh.read(tree).logits)
    assert said.ledger.drafted > 0


def test_idle_time_is_spent_on_trials_until_there_is_nothing_more_to_try(build):
    _, drafter = conversed(build())
    assert drafter.search.trials == 0, "nothing is tried within a reply unless the controller asks for it"
    before = drafter.passes
    while drafter.idle(time.monotonic()):
        pass
    assert drafter.search.done
    assert drafter.search.trials == 1, "three layers: only one set"
    assert drafter.passes == before
    assert not drafter.idle(time.monotonic() + 1)


def test_nothing_is_tried_before_enough_was_written():
    target = BUILDERS["decoder"](shared_network("llama"), 512)
    _, drafter = conversed(target, 12)
    assert not drafter.idle(time.monotonic() + 1)
    assert drafter.search.trials == 0


def test_nothing_is_tried_when_the_target_holds_another_text():
    target = BUILDERS["decoder"](shared_network("llama"), 512)
    _, drafter = conversed(target)
    target.prefill([9] * 30)
    assert not drafter.idle(time.monotonic() + 1)
    assert drafter.search.trials == 0


def test_what_was_found_is_kept_for_each_ratio():
    target = BUILDERS["decoder"](shared_network("llama"), 512)
    made = [built(target, ratio) for ratio in (0.17, 0.3)]
    found = [([[2], 0.25], [[3], 0.75]), ([[2, 3], 0.5],)]
    state = b""
    for drafter, trials in zip(made, found, strict=True):
        drafter.restore_state(state)
        for (place, *more), score in trials:
            skipped = tuple(sorted([place, *more]))
            drafter.search.learn(skipped, score)
        state = drafter.save_state()
    again = built(target, 0.17)
    again.restore_state(state)
    assert [place for place in again.search.best if place % 2] == [3]
    assert again.search.score == 0.75
    assert again.view._parts.mlp == {0, 2}
    assert again.save_state() == state
    with pytest.raises(ValueError, match="expected"):
        again.restore_state(b"[1]")
    again.restore_state(b"")
    assert again.search.trials == 0


def test_nothing_is_guessed_after_an_unsure_guess(build):
    target = build()
    sure, _ = conversed(target, method_options={"layer_skip.sure": 1.0})
    assert {max(round.tree.depths) for round in sure.rounds} == {1}
    free, _ = conversed(target)
    assert max(max(round.tree.depths) for round in free.rounds) == 4


def built(target, ratio):
    settings = Settings().but({"method_options": {"layer_skip.ratio": ratio}})
    return Parts(target).build(choose("layer_skip", settings))
