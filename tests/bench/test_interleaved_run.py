"""The race: orders rotate, prompts are the same for all, cold is cold, and warm has not seen what it is measured on."""

from __future__ import annotations

import json
from collections import Counter, defaultdict

import pytest
from racers import quick_pair, quick_settings

from specchat.bench.configurations import Configuration, parse_configurations, plain_of
from specchat.bench.contestants import Ours
from specchat.bench.interleaved_run import InterleavedRun
from specchat.bench.measured_reply import Written
from specchat.bench.workloads import Question

QUESTIONS = [
    Question("one", "chat", ("Say something.", "And again.")),
    Question("two", "code", ("Write a loop.",)),
    Question("three", "chat", ("Draw a tree.",)),
]


class Fake:
    """A contestant that answers with its name and remembers what it was asked."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.began = 0
        self.asked: list[tuple[int, ...]] = []

    def begin(self) -> None:
        self.began += 1

    def warm_up(self, prompt: list[int]) -> None:
        pass

    def write(self, prompt: list[int], seed: int, json_schema: str = "") -> Written:
        self.asked.append(tuple(prompt))
        return Written((1, 2), self.name, "length", 0.1, 0.2)


def letters(messages):
    return [ord(letter) for message in messages for letter in message["content"]]


def race(contestants, room: int = 10_000, **more) -> InterleavedRun:
    return InterleavedRun(contestants, letters, room, **more)


def test_every_contestant_answers_every_turn_and_the_order_rotates():
    run = race([Fake("a"), Fake("b"), Fake("c")])
    run.run(QUESTIONS)
    assert Counter(m.contestant for m in run.measured) == {"a": 4, "b": 4, "c": 4}
    places = defaultdict(set)
    for m in run.measured:
        places[m.contestant].add(m.place)
    assert all(places[name] == {0, 1, 2} for name in "abc")


def test_all_are_asked_the_same_and_the_first_ones_reply_is_the_history():
    first, second = Fake("a"), Fake("b")
    race([first, second]).run(QUESTIONS)
    assert first.asked == second.asked
    assert first.asked[1] == tuple(map(ord, "Say something.aAnd again."))


def test_every_prompt_has_a_seed_that_all_contestants_share():
    run = race([Fake("a"), Fake("b")], seed=7)
    run.run(QUESTIONS)
    assert {(m.question_id, m.seed) for m in run.measured} == {("one", 7), ("two", 8), ("three", 9)}


def test_a_prompt_without_room_is_left_out_and_said_so():
    run = race([Fake("a")], room=20)
    run.run(QUESTIONS)
    assert {(m.question_id, m.turn) for m in run.measured} == {("one", 0), ("two", 0), ("three", 0)}
    assert run.notes == ["one, turn 2: a prompt of 25 tokens is too long"]


def test_the_steps_are_counted_before():
    pair, said = quick_pair(), []
    configuration = parse_configurations("prompt_lookup:nodes=4", quick_settings())[0]
    ours = [Ours(plain_of(quick_settings()), pair), Ours(configuration, pair), Ours(configuration, pair, taught=True)]
    run = InterleavedRun(ours, pair.vocabulary.encode_chat, 2000, on_reply=lambda who, what: said.append(who))
    run.run(QUESTIONS)
    assert len(said) == run.steps(QUESTIONS)


class Watched(Ours):
    """Remembers which prompts its present drafter has been through, and checks every measured one against them."""

    def __init__(self, configuration: Configuration, pair, taught: bool) -> None:
        self.seen: list[tuple[int, ...]] = []
        self.before: dict[tuple[int, ...], list[list[tuple[int, ...]]]] = {}
        super().__init__(configuration, pair, taught)

    def _new(self, configuration=None):
        if configuration is None:
            self.seen = []
        return super()._new(configuration)

    def write(self, prompt, seed, json_schema=""):
        self.before.setdefault(tuple(prompt), []).append(list(self.seen))
        self.seen.append(tuple(prompt))
        return super().write(prompt, seed)


@pytest.mark.parametrize("taught", [False, True])
def test_a_warm_drafter_has_seen_other_prompts_and_a_cold_one_none(taught):
    pair = quick_pair()
    configuration = parse_configurations("prompt_lookup:nodes=4", quick_settings(max_tokens=4))[0]
    watched = Watched(configuration, pair, taught)
    single = [question for question in QUESTIONS if len(question.turns) == 1]
    run = InterleavedRun(
        [Ours(plain_of(quick_settings(max_tokens=4)), pair), watched], pair.vocabulary.encode_chat, 2000
    )
    run.run(single)
    measured = [m for m in run.measured if m.contestant == watched.name]
    assert len(measured) == 2
    for m in measured:
        assert all(m.prompt not in seen for seen in watched.before[m.prompt])
        assert any(watched.before[m.prompt]) == taught


def test_a_cold_contestant_keeps_its_controller_and_none_of_its_drafters():
    ours = Ours(parse_configurations("prompt_lookup:nodes=4", quick_settings())[0], quick_pair())
    first = ours._conversation.speculator
    ours.begin()
    second = ours._conversation.speculator
    assert second.controller is first.controller
    assert second.drafter is not first.drafter
    ours.forget()
    assert ours._conversation.speculator.controller is not first.controller


def test_a_reply_says_where_its_time_went():
    pair = quick_pair()
    ours = Ours(parse_configurations("prompt_lookup:nodes=4", quick_settings())[0], pair)
    written = ours.write(pair.vocabulary.encode_chat([{"role": "user", "content": "hello"}]), 0)
    work = written.work
    assert work is not None
    assert len(written.tokens) == 24
    assert work.rounds + work.accepted >= len(written.tokens)
    assert sum(passes for passes, _ in work.verify_by_rows.values()) == work.rounds
    assert work.draft_s + work.verify_s + work.other_s == pytest.approx(written.decode_s)


def test_a_question_with_a_schema_is_answered_by_it():
    ours = Ours(parse_configurations("prompt_lookup:nodes=4", quick_settings(max_tokens=40))[0], quick_pair())
    schema = json.dumps({"enum": ["yes", "no"]})
    run = InterleavedRun([ours], quick_pair().vocabulary.encode_chat, 2000)
    run.run([Question("q", "c", ("Is it?",), schema), Question("p", "c", ("Is it?",))])
    held, free = run.measured
    assert json.loads(held.written.text) in ("yes", "no")
    assert free.written.text != held.written.text
