"""A reply once more under other settings: its own give its own figures, and nothing of it stays."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from tiny_models import add_tiny_pair

from specchat.engine.protocol import events as ev
from specchat.engine.protocol.codec import decode_command, decode_event, encode
from specchat.engine.protocol.commands import Cancel, Change, Count, Generate, Load, Message, WhatIf
from specchat.engine.server.command_queue import CommandQueue
from specchat.engine.server.worker import Worker

TALK = [Message("user", "hello hello he hello")]
SAMPLED = {"temperature": 0.1, "top_k": 40}
OWN = ("drafter", "policy", "rule", "controller", "width", "depth", "nodes", "temperature", "top_k")


class Asked:
    """An engine in this process, over a model of a few kilobytes, and its last reply."""

    def __init__(self, home: Path) -> None:
        self.heard: list[ev.Event] = []
        add_tiny_pair(home)
        self.commands = CommandQueue()
        self.worker = Worker(self.commands, self.heard.append)
        settings = {"pair": "tiny", "dtype": "float32", "max_tokens": 40, "controller": "fixed", "nodes": 8}
        self.worker.answer(Load({**settings, **SAMPLED}))

    def reply(self, settings: dict, seed: int = 7) -> WhatIf:
        """Write one; the question what it would have been with its own settings."""
        self.worker.answer(Change({"controller": "fixed", **settings}))
        self.heard.clear()
        self.worker.answer(Generate(1, TALK, seed))
        assert not [event for event in self.heard if isinstance(event, ev.Failed)], self.heard
        started = next(event for event in self.heard if isinstance(event, ev.Started))
        self.rounds = [event for event in self.heard if isinstance(event, ev.RoundDone)]
        return WhatIf(
            2,
            "tiny",
            TALK,
            seed,
            [piece.token for round in self.rounds for piece in round.pieces],
            {name: started.settings[name] for name in OWN},
            {},
            [round.index for round in self.rounds if round.budget["nodes"] == 0],
        )

    def would(self, question: WhatIf, **changes: object) -> ev.WouldBe:
        self.heard.clear()
        self.worker.answer(decode_command(encode(msgspec.structs.replace(question, **changes))))
        (answer,) = (event for event in self.heard if not isinstance(event, ev.Redoing))
        assert isinstance(answer, ev.WouldBe), answer
        return decode_event(encode(answer))

    def refused(self, question: WhatIf, **changes: object) -> str:
        self.heard.clear()
        self.worker.answer(msgspec.structs.replace(question, **changes))
        (answer,) = self.heard
        assert isinstance(answer, ev.Failed), answer
        assert (answer.id, answer.during) == (2, "what_if")
        assert "\n" not in answer.message
        return answer.message


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("what_if")


@pytest.fixture(scope="module")
def engine(home: Path) -> Asked:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPECCHAT_HOME", str(home))
        return Asked(home)


@pytest.fixture
def asked(engine: Asked, home: Path, monkeypatch: pytest.MonkeyPatch) -> Asked:
    """One engine for all tests, which finds its files in every one of them."""
    monkeypatch.setenv("SPECCHAT_HOME", str(home))
    return engine


def length(found: ev.RedoneRounds) -> float:
    return found.tokens / found.rounds


SETTINGS = [  # of drafters that remember nothing of other replies
    {"drafter": "prompt_lookup", "policy": "chain", "rule": "follow"},
    {"drafter": "layer_skip", "policy": "best_first", "rule": "follow"},
    {"drafter": "layer_skip", "policy": "expansion", "rule": "multi_step", "depth": 3},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda one: one["rule"] + " " + one["drafter"])
def test_its_own_settings_give_exactly_the_rounds_that_it_had(asked, settings):
    for seed in (7, 8):  # the plain rounds of the first reply stand elsewhere
        question = asked.reply(settings, seed)
        had = asked.rounds
        places = [0]
        for round in had:
            places.append(places[-1] + len(round.pieces))
        assert max(len(round.pieces) for round in had) > 1, "a text in which no guess is right proves nothing"
        for at in (0, len(had) // 2):
            would = asked.would(question, at=places[at])
            figures = len(had), places[-1], sum(len(round.tree.tokens) - 1 for round in had)
            for found in (would.own, would.other):
                assert (found.rounds, found.tokens, found.drafted) == figures
                assert found.round_s > 0
            assert would.decided == (settings["rule"] == "follow")
            told, tree = would.round.tree, had[at].tree
            assert (told.tokens, told.parents, told.target_logprob) == (tree.tokens, tree.parents, tree.target_logprob)
            assert would.round.verdict.path == had[at].verdict.path


def test_other_settings_give_other_rounds_of_the_same_text(asked):
    question = asked.reply(SETTINGS[0])
    plain = asked.would(question, changes={"nodes": 0})
    assert (length(plain.other), plain.other.drafted) == (1.0, 0)
    assert length(plain.own) > 1
    one = asked.would(question, changes={"nodes": 1})
    assert 1.0 < length(one.other) <= length(one.own)
    asked.worker.answer(Change({"nodes": 1}))
    asked.heard.clear()
    asked.worker.answer(Generate(1, TALK, 7))
    rounds = [event for event in asked.heard if isinstance(event, ev.RoundDone)]
    assert [piece.token for round in rounds for piece in round.pieces] == question.tokens
    plain = [round.index for round in rounds if round.budget["nodes"] == 0]
    told = asked.would(question, changes={"nodes": 1}, plain=plain).other
    assert (told.rounds, told.tokens) == (len(rounds), len(question.tokens)), "what it says is what then happens"
    hotter = asked.would(question, changes={"temperature": 2.0}, at=0)
    assert not hotter.decided
    assert hotter.round.index == 0
    assert hotter.other.tokens >= hotter.other.rounds


def test_a_controller_that_goes_by_time_decides_nothing_unless_it_is_asked_about(asked):
    question = asked.reply({**SETTINGS[0], "controller": "goodput"})
    by_time = asked.would(question, changes={"nodes": 2})
    assert by_time.full
    in_full = asked.would(question, own={**question.own, "controller": "fixed"}, changes={"nodes": 2}, plain=[])
    assert not in_full.full
    for found, other in ((by_time.own, in_full.own), (by_time.other, in_full.other)):
        assert (found.rounds, found.drafted) == (other.rounds, other.drafted)
    assert not asked.would(question, changes={"controller": "fixed"}).full


def test_a_round_begins_where_it_is_asked_for(asked):
    question = asked.reply(SETTINGS[0])
    inside = next(at for at in range(1, 30) if at not in _begins(asked.rounds))
    would = asked.would(question, at=inside, plain=[])  # plain rounds, by their numbers, would stand elsewhere then
    assert would.round.context_tokens == asked.rounds[0].context_tokens + inside
    assert would.round.tree.tokens[0] == question.tokens[inside - 1]
    assert would.own.rounds <= would.other.rounds <= would.own.rounds + 1


def _begins(rounds: list[ev.RoundDone]) -> set[int]:
    return {round.context_tokens - rounds[0].context_tokens for round in rounds}


def test_nothing_of_it_stays(asked):
    """The next reply is what it would have been; settings, statistics and what drafters learnt are the same."""

    def state() -> object:
        now = asked.worker._pair.open
        controller = now.conversation.speculator.controller.controller
        return now.conversation.settings, now.totals.replies, now.totals.ledger.rounds, repr(controller.__dict__)

    question = asked.reply({"drafter": "suffix", "policy": "best_first", "rule": "follow"})
    before = state()
    asked.would(question, changes={"drafter": "token_recycling", "rule": "follow", "controller": "goodput"})
    asked.would(question, changes={"rule": "typical", "temperature": 1.5})
    assert state() == before
    first = [round.tree for round in asked.rounds]
    again = asked.reply({})
    assert again.tokens == question.tokens
    assert len(first) >= len(asked.rounds)  # what was learnt of the same text stayed


def test_whatever_waits_ends_it_and_is_answered(asked):
    question = asked.reply(SETTINGS[0])
    for waiting, kind in (
        (Cancel(2), None), (Generate(3, TALK, 7), ev.Finished), (Change({"width": 3}), ev.Changed)
    ):  # fmt: skip
        asked.heard.clear()
        asked.commands.receive(waiting)
        asked.worker.answer(msgspec.structs.replace(question, seed=9))
        (answer,) = (event for event in asked.heard if not isinstance(event, ev.Redoing))
        assert answer == ev.WouldBe(2, stopped=True)
        deferred, asked.worker._deferred = asked.worker._deferred, []
        assert len(deferred) == (kind is not None)
        for command in deferred:
            asked.worker.answer(command)
            assert isinstance(asked.heard[-1], kind)
    asked.heard.clear()
    asked.commands.receive(Count(4, TALK))
    asked.worker.answer(question)
    answers = [type(event) for event in asked.heard if not isinstance(event, ev.Redoing)]
    assert answers == [ev.Counted, ev.WouldBe], "what can be answered meanwhile is"
    assert not asked.heard[-1].stopped


def test_what_cannot_be_done_is_refused_in_one_line(asked):
    question = asked.reply(SETTINGS[0])
    assert asked.refused(question, pair="another") == "the reply was written with 'another', and tiny is loaded"
    assert "outside the vocabulary" in asked.refused(question, tokens=[1, 2**23])
    assert "takes effect when a pair is loaded" in asked.refused(question, changes={"dtype": "bfloat16"})
    assert "there is no setting" in asked.refused(question, changes={"nodse": 3})
    assert "nodes" in asked.refused(question, changes={"nodes": 100_000})
    assert "context" in asked.refused(question, messages=[Message("user", "hello " * 5000)])
    assert "nearest that works" in asked.refused(question, changes={"drafter": "draft_model"})
    for wrong in ({"tokens": []}, {"tokens": [1] * 5000}, {"at": len(question.tokens)}, {"own": {"width": [1]}}):
        with pytest.raises(msgspec.DecodeError):
            decode_command(encode(msgspec.structs.replace(question, **wrong)))
    round = asked.rounds[0]
    good = ev.RedoneRounds(2, 3, 4, 0.1)
    for answer in (ev.WouldBe(1), ev.WouldBe(1, good, ev.RedoneRounds(3, 2, 4, 0.1)),
                   ev.WouldBe(1, good, good, round=msgspec.structs.replace(round, pieces=[]))):  # fmt: skip
        with pytest.raises(msgspec.DecodeError):
            decode_event(encode(answer))


def test_a_reply_that_is_done_once_more_says_how_far_it_is(asked):
    question = asked.reply(SETTINGS[0])
    for runs in (2, 1):  # its own rounds are known the second time
        asked.heard.clear()
        asked.worker.answer(question)
        said = [event for event in asked.heard if isinstance(event, ev.Redoing)]
        places = [event.done for event in said]
        assert places == sorted(set(places))
        assert 2 <= len(said) <= 20
        (total,) = {event.total for event in said}
        assert total % runs == 0
        assert all(event.id == question.id and event.done <= total for event in said)
        assert max(places) > 0.7 * total
