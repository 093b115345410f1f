"""Replies of an engine process: rounds, seeds, cancelling, and changes while they run."""

from __future__ import annotations

import re
import time

import msgspec
import pytest
from engine_driver import HELLO, Driver

from specchat.core.request import EVERYTHING, FIRST, LOGITS
from specchat.core.speedup import FEWEST_PLAIN_ROUNDS, RoundIntervals
from specchat.core.tree import ROOT
from specchat.decoding.speculate import Speculator
from specchat.engine.client.speedup import add_round, speedup_of
from specchat.engine.protocol import events as ev
from specchat.engine.protocol.commands import (
    Cancel,
    Change,
    Compare,
    Count,
    Generate,
    Load,
    Message,
    Pace,
    ReplyConstraint,
)
from specchat.engine.server.command_queue import CommandQueue
from specchat.engine.server.worker import Worker
from specchat.tui.screens.alternatives import ONE_TOKEN


def test_a_reply_is_started_rounds_and_finished(driver):
    tokens, finished = driver.reply(1)
    started, rounds = driver.passed[0], driver.rounds()
    assert isinstance(started, ev.Started)
    assert started.seed == 7
    assert started.messages == HELLO
    assert [event.index for event in rounds] == list(range(len(rounds)))
    assert finished.stop == "length"
    assert finished.stats.tokens == len(tokens) == 60
    assert finished.stats.rounds == len(rounds)
    assert finished.stats.accepted == sum(len(event.verdict.path) for event in rounds)
    assert finished.stats.drafted == sum(len(event.tree.tokens) - 1 for event in rounds)
    for event in rounds:
        path = [event.tree.tokens[node] for node in event.verdict.path]
        bonus = [] if event.verdict.bonus is None else [event.verdict.bonus]
        assert [piece.token for piece in event.pieces] == path + bonus
        assert [piece.origin for piece in event.pieces] == ["drafted"] * len(path) + ["target"] * len(bonus)
        assert len(event.verdict.reasons) == len(event.tree.parents) == len(event.tree.texts)
        assert event.tree.target_logprob[ROOT] is None
        assert all(event.tree.target_logprob[node] <= 0 for node in event.verdict.path)


def test_a_reply_whose_trees_nobody_looks_at_is_the_same_without_log_probabilities(driver):
    driver.load(temperature=0.8)
    seen, _ = driver.reply(2)
    driver.passed.clear()
    driver.send(Generate(3, HELLO, 7, logprobs=False)).until(ev.Finished)
    rounds = driver.rounds()
    assert [piece.token for event in rounds for piece in event.pieces] == seen
    assert {value for event in rounds for value in (*event.tree.target_logprob, event.verdict.bonus_logprob)} == {None}


def test_a_reply_that_says_log_probabilities_needs_logits_of_every_pass(away_from_home, monkeypatch):
    submit, requests = Speculator.submit, []

    def noted(speculator, draft):
        requests.append(draft.request)
        return submit(speculator, draft)

    monkeypatch.setattr(Speculator, "submit", noted)
    worker = Worker(CommandQueue(), lambda event: None)
    worker.answer(Load({"pair": "scripted", "max_tokens": 9, "temperature": 0.0, "repetition_penalty": 1.0}))
    for told, top, needs in ((True, None, LOGITS), (False, None, FIRST), (False, 0, LOGITS), (False, 2, EVERYTHING)):
        worker.answer(Generate(1, HELLO, 7, logprobs=told, top_logprobs=top))
        assert {request.needs for request in requests} == {needs}
        requests.clear()


def test_a_reply_that_was_cut_goes_on_as_if_it_had_not_been(driver):
    driver.load(temperature=0.8)
    whole, _ = driver.reply(2)
    driver.send(Change({"max_tokens": 25})).until(ev.Changed)
    cut, finished = driver.reply(3)
    assert (cut, finished.stop) == (whole[:25], "length")
    begun = [piece.text for event in driver.rounds() for piece in event.pieces if piece.text]
    driver.send(Change({"max_tokens": 35}), Generate(4, HELLO, 7, begun=begun)).until(ev.Finished)
    started = next(event for event in driver.passed if isinstance(event, ev.Started))
    assert started.begun == begun
    assert started.reused_tokens >= started.prompt_tokens - 2
    assert [piece.token for event in driver.rounds() for piece in event.pieces] == whole[25:]
    driver.send(Generate(5, HELLO, 7, begun_tokens=cut)).until(ev.Finished)
    started = next(event for event in driver.passed if isinstance(event, ev.Started))
    assert "".join(started.begun) == "".join(begun)
    assert len(started.begun) == len(cut)
    assert [piece.token for event in driver.rounds() for piece in event.pieces] == whole[25:]
    refused = driver.send(Generate(6, HELLO, 7, begun_tokens=[2**24 - 1])).until(ev.Failed)
    assert "outside the vocabulary" in refused.message


def test_a_reply_of_one_token_says_what_is_likely_at_a_place_and_disturbs_no_other(driver):
    driver.load(temperature=0.8)
    whole, _ = driver.reply(2)
    begun = "".join([piece.text for event in driver.rounds() for piece in event.pieces][:4])
    held = ReplyConstraint("regex", f"{re.escape(begun)}[0-9]+")
    for constraint in (None, held):
        asked = Generate(3, HELLO, apart=ONE_TOKEN, begun_tokens=whole[:4], logprobs=False, top_logprobs=10)
        driver.send(msgspec.structs.replace(asked, constraint=constraint)).until(ev.Finished)
        (round,) = driver.rounds()
        top = round.pieces[0].likely.top
        assert len(top) == 10
        assert [one.logprob for one in top] == sorted((one.logprob for one in top), reverse=True)
        assert bool(round.tree.forbidden) == (constraint is not None)
        assert {one.token for one in round.tree.forbidden} <= {one.token for one in top}
    assert driver.reply(4)[0] == whole


def test_the_same_seed_gives_the_same_reply_with_speculation_on_and_off(driver):
    driver.load(temperature=2.0)
    speculated, _ = driver.reply(2)
    driver.send(Change({"controller": "off"})).until(ev.Changed)
    plain, finished = driver.reply(3)
    assert speculated == plain
    assert finished.stats.drafted == 0
    other, _ = driver.reply(4, seed=8)
    assert other != plain


def test_without_a_seed_every_reply_draws_one(driver):
    driver.load(max_tokens=1)
    seeds = set()
    for id in (5, 6):
        driver.reply(id, seed=None)
        seeds.add(driver.passed[0].seed)
    assert len(seeds) == 2
    driver.send(Change({"seed": 5})).until(ev.Changed)
    driver.reply(7, seed=None)
    assert driver.passed[0].seed == 5


def test_a_follow_up_reuses_what_was_read(driver):
    driver.load(max_tokens=40)
    tokens, finished = driver.reply(8)
    text = "".join(piece.text for event in driver.rounds() for piece in event.pieces) + finished.tail
    assert finished.stats.tokens == len(tokens)
    driver.send(Change({"max_tokens": 5})).until(ev.Changed)
    driver.reply(9, messages=[*HELLO, Message("assistant", text), Message("user", "And?")])
    started = driver.passed[0]
    assert started.reused_tokens > len(tokens)
    assert started.reused_tokens < started.prompt_tokens


def test_cancelling_stops_at_the_next_round_and_the_chat_goes_on(driver):
    driver.load(nodes=0, max_tokens=100)
    driver.send(Generate(10, HELLO, 7)).until(ev.RoundDone)
    finished = driver.send(Cancel(10)).until(ev.Finished)
    assert finished.stop == "cancelled"
    assert finished.stats.tokens == 1 + len(driver.rounds()) < 100
    assert driver.reply(11)[1].stop == "length"


def test_a_change_acts_between_two_rounds_of_a_running_reply(driver):
    driver.load(nodes=0, max_tokens=100)
    driver.send(Generate(12, HELLO, 7)).until(ev.RoundDone)
    changed = driver.send(Change({"nodes": 8, "depth": 4})).until(ev.Changed)
    assert changed.settings["nodes"] == 8
    assert all(event.budget["nodes"] == 0 for event in driver.rounds())
    driver.until(ev.Finished)
    assert {event.budget["nodes"] for event in driver.rounds() if event.why != "to compare with"} == {8}


@pytest.mark.parametrize("changes", [{"pair": "smol"}, {"dtype": "int8"}, {"threads": 1}, {"device": "cpu"}])
def test_what_acts_when_a_pair_is_loaded_is_no_live_setting(driver, changes):
    before = driver.load().settings
    (name,) = changes
    for command in (Change(changes), Generate(12, HELLO, 7, changes)):
        driver.engine.send(command)
        failed = driver._next()
        assert isinstance(failed, ev.Failed)
        assert failed.message.startswith(f"{name} = ")
    assert driver.send(Change({name: before[name], "width": 5})).until(ev.Changed).settings == {**before, "width": 5}


def test_every_round_says_why_its_budget_was_chosen(driver):
    for controller, why in (("fixed", "fixed by you"), ("off", "off")):
        driver.load(controller=controller)
        driver.reply(1)
        assert {event.why for event in driver.rounds()} - {"to compare with"} == {why}
    driver.load(controller="goodput")
    driver.reply(1)
    assert all(event.why for event in driver.rounds())


def test_a_held_reply_goes_on_round_by_round_and_obeys_meanwhile(driver):
    driver.load(nodes=4)
    driver.send(Pace(1, hold=True), Generate(1, HELLO, 7)).until(ev.RoundDone)
    driver.send(Count(5, HELLO)).until(ev.Counted)
    assert not driver.rounds(), "it is held"
    driver.send(Change({"nodes": 2})).until(ev.Changed)
    driver.send(Pace(1, hold=True, rounds=2))
    stepped = [driver.until(ev.RoundDone), driver.until(ev.RoundDone)]
    assert [event.index for event in stepped] == [1, 2]
    assert {event.budget["nodes"] for event in stepped} == {2}  # a first reply opens with guesses
    driver.send(Count(6, HELLO)).until(ev.Counted)
    assert not driver.rounds(), "it is held again"
    driver.send(Pace(1)).until(ev.Finished)


def test_a_held_reply_is_cancelled_at_once_and_the_next_one_is_not_held(driver):
    driver.send(Pace(1, hold=True), Generate(1, HELLO, 7)).until(ev.RoundDone)
    driver.send(Count(5, HELLO)).until(ev.Counted)
    assert driver.send(Cancel(1)).until(ev.Finished).stop == "cancelled"
    _, finished = driver.reply(2)
    assert finished.stop != "cancelled"


def test_after_the_last_round_nothing_is_waited_for(driver):
    driver.load(max_tokens=1)
    driver.send(Pace(1, hold=True), Generate(1, HELLO, 7))
    assert driver.until(ev.Finished).stop == "length"


def test_waiting_between_rounds_is_in_no_figure(driver):
    gap_s = 0.4
    driver.load(max_tokens=8, nodes=1)
    driver.send(Pace(1, gap_s=gap_s), Generate(1, HELLO, 7))
    began = time.monotonic()
    finished = driver.until(ev.Finished)
    passed_s, gaps = time.monotonic() - began, len(driver.rounds()) - 1
    assert gaps >= 2
    assert passed_s >= gaps * gap_s
    assert passed_s - finished.at_s >= gaps * gap_s * 0.9
    assert finished.stats.other_s < passed_s - gaps * gap_s * 0.9


def test_a_reply_apart_has_its_own_settings_and_leaves_the_chats_alone(driver):
    before = driver.load(drafter="suffix", max_tokens=60).settings
    apart = {"controller": "off", "max_tokens": 12}
    driver.send(Generate(70, HELLO, 7, apart))
    started, finished = driver.until(ev.Started), driver.until(ev.Finished)
    assert (started.settings["controller"], finished.stats.tokens, finished.stats.drafted) == ("off", 12, 0)
    driver.send(Change({}))
    assert driver.until(ev.Changed).settings == before


def test_replies_apart_have_learnt_nothing_from_each_other(driver):
    driver.load(drafter="suffix")
    chats = [driver.reply(id, 7)[1].stats.drafted for id in (71, 72)]
    assert chats[1] > chats[0], "the chat's own drafter remembers its replies"
    drafted = []
    for id in (73, 74):
        driver.send(Generate(id, HELLO, 7, {}))
        drafted.append(driver.until(ev.Finished).stats.drafted)
    assert drafted[0] == drafted[1] < chats[1]


def test_a_reply_apart_with_settings_that_do_not_fit_fails_and_changes_nothing(driver):
    driver.engine.send(Generate(75, HELLO, 7, {"width": 0}))
    failed = driver._next()
    while not isinstance(failed, ev.Failed):
        failed = driver._next()
    assert (failed.id, failed.during) == (75, "generate")
    assert driver.reply(76)[1].stop == "length"


def test_where_two_replies_part_is_told_with_the_margin(driver):
    tokens, _ = driver.reply(77)
    driver.send(Compare(77, HELLO, 7, tokens, tokens))
    assert driver.until(ev.Compared) == ev.Compared(77)
    other = [*tokens[:5], tokens[5] + 1, *tokens[6:]]
    driver.send(Compare(78, HELLO, 7, tokens, other))
    compared = driver.until(ev.Compared)
    assert (compared.place, compared.tie, compared.allowed) == (5, False, 0.0)
    assert compared.margin is None or compared.margin > 0
    assert compared.plain_text != compared.other_text
    driver.send(Compare(79, HELLO, 7, tokens, tokens[:9]))
    assert driver.until(ev.Compared) == ev.Compared(79, 9, compared_text(driver, tokens[9]), "", None, 0.0, False)
    assert driver.reply(80)[0] == tokens, "the chat goes on as before"


def compared_text(driver: Driver, token: int) -> str:
    """How the engine shows a token."""
    driver.send(Compare(99, HELLO, 7, [token], []))
    return driver.until(ev.Compared).plain_text


def test_the_speed_up_is_the_same_told_at_the_end_or_counted_from_the_rounds(driver):
    """The app, recordings and the engine have one definition, and one clock."""
    driver.load(max_tokens=100, controller="fixed", nodes=0)
    driver.send(Pace(1, hold=True, rounds=FEWEST_PLAIN_ROUNDS), Generate(1, HELLO, 7))
    rounds = [driver.until(ev.RoundDone) for _ in range(FEWEST_PLAIN_ROUNDS)]
    driver.send(Change({"nodes": 4}), Pace(1))
    finished = driver.until(ev.Finished)
    gaps = RoundIntervals()
    for round in [*rounds, *driver.rounds()]:
        add_round(gaps, round)
    gaps.end(finished.at_s)
    assert gaps.plain_rounds == finished.stats.plain_rounds >= FEWEST_PLAIN_ROUNDS
    assert gaps.seconds == pytest.approx(finished.at_s - finished.stats.prefill_s, abs=0.01)
    assert gaps.speedup == speedup_of(finished.stats)


def test_a_reply_apart_has_no_plain_rounds(driver):
    """A caller that asks for one measures plain decoding separately."""
    driver.load(max_tokens=100, controller="fixed", nodes=1)
    driver.send(Generate(1, HELLO, 7, {})).until(ev.Finished)
    assert all(round.budget["nodes"] for round in driver.rounds())


def test_a_text_is_gone_on_with_as_it_stands(driver):
    started = driver.send(Generate(81, [], 7, text="A tree is wide where the draft")).until(ev.Started)
    assert (started.messages, started.text) == ([], "A tree is wide where the draft")
    driver.until(ev.Finished)
    text = "".join(piece.text for event in driver.rounds() for piece in event.pieces)
    assert text.startswith(" is unsure and deep")


def test_a_predicted_reply_is_proposed_and_the_text_stays(driver):
    tokens, finished = driver.reply(82)
    text = "".join(piece.text for event in driver.rounds() for piece in event.pieces)
    guided = driver.send(Generate(83, HELLO, 7, reference=text)).until(ev.Finished)
    rounds = driver.rounds()
    assert [piece.token for event in rounds for piece in event.pieces] == tokens
    assert guided.stats.acceptance_length > finished.stats.acceptance_length
    assert "reference" in {draw.proposer for event in rounds for draw in event.tree.draws}


def test_a_reply_to_messages_and_a_text_at_once_is_refused(driver):
    driver.send(Generate(84, HELLO, 7, text="And"))
    with pytest.raises(pytest.fail.Exception, match="answers messages or goes on with a text"):
        driver.until(ev.Started)


def test_what_was_said_of_a_reply_that_failed_is_not_said_of_the_next_with_its_number(driver):
    wrong = {"drafter": "chian"}
    driver.send(Pace(231, hold=True), Generate(231, HELLO, 7, apart=wrong)).until(ev.Failed)
    assert driver.reply(231)[1].stats.tokens == 60
    driver.send(Cancel(232), Generate(232, HELLO, 7, apart=wrong)).until(ev.Failed)
    assert driver.reply(232)[1].stop == "length"
