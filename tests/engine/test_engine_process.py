"""The engine as a process of its own: what it answers, what it survives, and what it never prints."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from specchat.core.speedup import FEWEST_PLAIN_ROUNDS, Gaps
from specchat.core.tree import ROOT
from specchat.engine.near.client import Engine, engine_environment, local_command
from specchat.engine.near.speedup import add_round, speedup_of
from specchat.engine.protocol import events as ev
from specchat.engine.protocol.codec import decode_event, encode
from specchat.errors import EngineError

PATIENCE_S = 30
SCRIPTED = {"pair": "scripted", "max_tokens": 60}
HELLO = [ev.Message("user", "What are you?")]


class Driver:
    """An engine, and events awaited with a limit."""

    def __init__(self, log: Path, command: list[str] | None = None) -> None:
        self._arrived = threading.Event()
        self._events: deque[ev.Event] = deque()
        self.engine = Engine(log, command, threads=1, wake=self._arrived.set)

    def send(self, *commands: ev.Command) -> Driver:
        for command in commands:
            self.engine.send(command)
        return self

    def until(self, *kinds: type) -> Any:
        """The next event of one of these kinds; the events before it are in `passed`."""
        self.passed: list[ev.Event] = []
        while True:
            event = self._next()
            if isinstance(event, kinds):
                return event
            if isinstance(event, ev.Died | ev.Failed):
                pytest.fail(f"unexpected {event}")
            self.passed.append(event)

    def _next(self) -> ev.Event:
        while not self._events:
            if not self._arrived.wait(PATIENCE_S):
                pytest.fail(f"the engine said nothing for {PATIENCE_S} s")
            self._arrived.clear()
            self._events.extend(self.engine.drain())
        return self._events.popleft()

    def load(self, **settings: Any) -> ev.Ready:
        return self.send(ev.Load(SCRIPTED | settings)).until(ev.Ready)

    def rounds(self) -> list[ev.RoundDone]:
        return [event for event in self.passed if isinstance(event, ev.RoundDone)]

    def reply(self, id: int, seed: int | None = 7, messages: list[ev.Message] | None = None) -> tuple[list[int], Any]:
        """A whole reply: its tokens and how it finished."""
        finished = self.send(ev.Generate(id, messages or HELLO, seed)).until(ev.Finished)
        assert finished.id == id
        return [piece.token for event in self.rounds() for piece in event.pieces], finished


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("engine")


@pytest.fixture(scope="module")
def shared(home: Path) -> Iterator[Driver]:
    """One engine for all tests that leave it as they found it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPECCHAT_HOME", str(home / "home"))
        driver = Driver(home / "shared.log")
        driver.hello = driver.until(ev.Hello)
        driver.load()
        yield driver
        driver.engine.close()
        assert not driver.engine.alive


@pytest.fixture
def driver(shared: Driver) -> Driver:
    assert shared.engine.alive
    shared.load()
    return shared


@pytest.fixture
def own(away_from_home: None, tmp_path: Path) -> Iterator[Driver]:
    """An engine that a test may break."""
    driver = Driver(tmp_path / "own.log")
    yield driver
    driver.engine.close(0.5)


def test_hello_says_who_it_is_and_what_it_can_do(shared):
    assert shared.hello.protocol == ev.PROTOCOL
    assert shared.hello.pid == shared.engine.pid
    assert {"drafter", "policy", "rule", "controller"} == {method.family for method in shared.hello.methods}
    assert "temperature" in {option.name for option in shared.hello.settings}


def test_loading_ends_in_ready_with_the_settings_in_force(driver):
    ready = driver.load(temperature=0.5, width=3)
    assert ready.pair == "scripted"
    assert ready.settings["temperature"] == 0.5
    assert ready.settings["width"] == 3
    assert ready.loss.lossless
    assert ready.context_tokens > 0


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


def test_the_same_seed_gives_the_same_reply_with_speculation_on_and_off(driver):
    driver.load(temperature=2.0)
    speculated, _ = driver.reply(2)
    driver.send(ev.Change({"controller": "off"})).until(ev.Changed)
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
    driver.send(ev.Change({"seed": 5})).until(ev.Changed)
    driver.reply(7, seed=None)
    assert driver.passed[0].seed == 5


def test_a_follow_up_reuses_what_was_read(driver):
    driver.load(max_tokens=40)
    tokens, finished = driver.reply(8)
    text = "".join(piece.text for event in driver.rounds() for piece in event.pieces) + finished.tail
    assert finished.stats.tokens == len(tokens)
    driver.send(ev.Change({"max_tokens": 5})).until(ev.Changed)
    driver.reply(9, messages=[*HELLO, ev.Message("assistant", text), ev.Message("user", "And?")])
    started = driver.passed[0]
    assert started.reused_tokens > len(tokens)
    assert started.reused_tokens < started.prompt_tokens


def test_cancelling_stops_at_the_next_round_and_the_chat_goes_on(driver):
    driver.load(nodes=0, max_tokens=100)
    driver.send(ev.Generate(10, HELLO, 7)).until(ev.RoundDone)
    finished = driver.send(ev.Cancel(10)).until(ev.Finished)
    assert finished.stop == "cancelled"
    assert finished.stats.tokens == 1 + len(driver.rounds()) < 100
    assert driver.reply(11)[1].stop == "length"


def test_a_change_acts_between_two_rounds_of_a_running_reply(driver):
    driver.load(nodes=0, max_tokens=100)
    driver.send(ev.Generate(12, HELLO, 7)).until(ev.RoundDone)
    changed = driver.send(ev.Change({"nodes": 8, "depth": 4})).until(ev.Changed)
    assert changed.settings["nodes"] == 8
    assert all(event.budget["nodes"] == 0 for event in driver.rounds())
    driver.until(ev.Finished)
    assert {event.budget["nodes"] for event in driver.rounds() if event.why != "to compare with"} == {8}


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
    driver.send(ev.Pace(1, hold=True), ev.Generate(1, HELLO, 7)).until(ev.RoundDone)
    driver.send(ev.Count(5, HELLO)).until(ev.Counted)
    assert not driver.rounds(), "it is held"
    driver.send(ev.Change({"nodes": 2})).until(ev.Changed)
    driver.send(ev.Pace(1, hold=True, rounds=2))
    stepped = [driver.until(ev.RoundDone), driver.until(ev.RoundDone)]
    assert [event.index for event in stepped] == [1, 2]
    assert {event.budget["nodes"] for event in stepped} == {2}
    driver.send(ev.Count(6, HELLO)).until(ev.Counted)
    assert not driver.rounds(), "it is held again"
    driver.send(ev.Pace(1)).until(ev.Finished)


def test_a_held_reply_is_cancelled_at_once_and_the_next_one_is_not_held(driver):
    driver.send(ev.Pace(1, hold=True), ev.Generate(1, HELLO, 7)).until(ev.RoundDone)
    driver.send(ev.Count(5, HELLO)).until(ev.Counted)
    assert driver.send(ev.Cancel(1)).until(ev.Finished).stop == "cancelled"
    _, finished = driver.reply(2)
    assert finished.stop != "cancelled"


def test_after_the_last_round_nothing_is_waited_for(driver):
    driver.load(max_tokens=1)
    driver.send(ev.Pace(1, hold=True), ev.Generate(1, HELLO, 7))
    assert driver.until(ev.Finished).stop == "length"


def test_waiting_between_rounds_is_in_no_figure(driver):
    gap_s = 0.4
    driver.load(max_tokens=8, nodes=1)
    driver.send(ev.Pace(1, gap_s=gap_s), ev.Generate(1, HELLO, 7))
    began = time.monotonic()
    finished = driver.until(ev.Finished)
    passed_s, gaps = time.monotonic() - began, len(driver.rounds()) - 1
    assert gaps >= 2
    assert passed_s >= gaps * gap_s
    assert passed_s - finished.at_s >= gaps * gap_s * 0.9
    assert finished.stats.other_s < passed_s - gaps * gap_s * 0.9


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"drafter": "chian"}, "chian"),
        ({"rule": "folow"}, "did you mean 'follow'"),
        ({"width": 0}, "1 to 64"),
        ({"method_options": {"expansion.widths": "x"}}, "whole numbers"),
        ({"method_options": {"expansoin.widths": "2"}}, "did you mean 'expansion'"),
        ({"nonsense": 1}, "nonsense"),
        ({"temperature": "hot"}, "not a number"),
    ],
    ids=str,
)
def test_a_change_that_is_refused_changes_nothing(driver, changes, said):
    before = driver.send(ev.Change({})).until(ev.Changed).settings
    failed = driver.send(ev.Change({"depth": 3} | changes)).until(ev.Failed)
    assert said in failed.message
    assert "\n" not in failed.message
    assert failed.exit_code == 2
    assert failed.during == "change"
    assert driver.send(ev.Change({})).until(ev.Changed).settings == before


@pytest.mark.parametrize("changes", [{"stop": 5}, {"method_options": 3}, {"stop": [None]}], ids=str)
def test_a_setting_of_the_wrong_shape_is_no_internal_error(driver, changes):
    failed = driver.send(ev.Change(changes)).until(ev.Failed)
    assert "internal error" not in failed.message
    assert failed.exit_code == 2


def test_counting_reads_nothing(driver):
    counted = driver.send(ev.Count(13, HELLO)).until(ev.Counted)
    driver.load(max_tokens=1)
    driver.reply(14)
    assert counted.id == 13
    assert counted.tokens == driver.passed[0].prompt_tokens
    assert counted.context_tokens > counted.tokens


def test_statistics_add_up_over_replies(driver):
    before = driver.send(ev.Statistics()).until(ev.Totals)
    _, first = driver.reply(15)
    _, second = driver.reply(16, seed=9)
    after = driver.send(ev.Statistics()).until(ev.Totals)
    assert after.replies == before.replies + 2
    assert after.stats.tokens == before.stats.tokens + first.stats.tokens + second.stats.tokens
    assert after.stats.accepted == before.stats.accepted + first.stats.accepted + second.stats.accepted


def test_a_failed_load_keeps_the_pair_that_runs(driver):
    failed = driver.send(ev.Load({"pair": "scirpted"})).until(ev.Failed)
    assert "scripted" in failed.message
    assert failed.exit_code == 2
    assert driver.reply(17)[1].stats.tokens == 60


def test_pairs_may_be_switched_back_and_forth(own, away_from_home):
    folder = Path(os.environ["SPECCHAT_HOME"]) / "config"
    folder.mkdir(parents=True)
    (folder / "models.toml").write_text('[pairs.alone]\ntarget = "scripted"\n')
    alone = own.load(pair="alone", drafter="prompt_lookup")
    assert (alone.pair, alone.draft) == ("alone", None)
    tokens, _ = own.reply(1)
    failed = own.send(ev.Change({"drafter": "draft_model"})).until(ev.Failed)
    assert "pair 'alone' has none" in failed.message
    paired = own.load(drafter="draft_model")
    assert (paired.pair, paired.settings["drafter"]) == ("scripted", "draft_model")
    assert paired.draft is not None
    drafted, finished = own.reply(2)
    assert drafted == tokens
    assert finished.stats.draft_passes > 0
    assert own.load(pair="alone", drafter="prompt_lookup").draft is None
    assert own.reply(3)[0] == tokens


BAD_LINES = {
    "no JSON": b"this is no JSON",
    "no command": b'{"type":"dance"}',
    "no type": b"{}",
    "a list": b"[1,2]",
    "a missing field": b'{"type":"generate","id":1}',
    "zeros": b"\x00" * 50,
    "no text": b'{"type":"count","id":1,"messages":[{"role":"user","content":"\xff\xfe"}]}',
    "very deep": b'{"type":"change","settings":{"a":' + b"[" * 10_000 + b"]" * 10_000 + b"}}",
}


def test_an_unknown_role_is_refused_in_one_line(driver):
    failed = driver.send(ev.Generate(19, [ev.Message("wizard", "hi")])).until(ev.Failed)
    assert failed.id == 19
    assert "\n" not in failed.message
    assert driver.reply(20)[1].stats.tokens == 60


@pytest.mark.parametrize("line", BAD_LINES.values(), ids=BAD_LINES.keys())
def test_a_line_that_is_no_command_is_answered_and_survived(shared, line):
    shared.engine._process.stdin.write(line + b"\n\n")
    shared.engine._process.stdin.flush()
    answer = shared.until(ev.Failed)
    assert answer.during in ("protocol", "generate", "count")  # the command, where it can be told which it was
    assert answer.exit_code == 2
    shared.send(ev.Statistics()).until(ev.Totals)


# -------------------------------------------------------------------------------------- engines of one's own


def test_asking_before_anything_is_loaded_is_refused(own):
    own.send(ev.Generate(1, HELLO), ev.Count(2, HELLO), ev.Change({}), ev.Statistics())
    failed = [own.until(ev.Failed) for _ in range(3)]
    assert [event.id for event in failed] == [1, 2, None]
    assert all("no pair is loaded" in event.message for event in failed)
    assert own.until(ev.Totals).replies == 0


def test_a_killed_engine_is_reported_in_the_middle_of_a_round(own):
    own.load(nodes=0, max_tokens=400)
    own.send(ev.Generate(1, HELLO, 7)).until(ev.RoundDone)
    os.kill(own.engine.pid, signal.SIGKILL)
    died = own.until(ev.Died)
    assert died.returncode == -signal.SIGKILL
    assert not own.engine.alive
    own.send(ev.Statistics())  # and nobody is hurt by talking to it


def test_a_load_may_be_stopped_before_it_has_begun(own):
    own.send(ev.Load(SCRIPTED), ev.Cancel(None))
    assert own.until(ev.Failed, ev.Ready).__class__ is ev.Failed
    assert own.load().pair == "scripted"


CHATTER = """
import os, sys
import specchat.engine.far.pair_loading as pairs
load = pairs.load_scripted
def noisy(*arguments):
    print("a library says hello")
    sys.stdout.write("and writes")
    os.write(1, b"raw bytes too\\n")
    os.system("echo from a child process")
    return load(*arguments)
pairs.load_scripted = noisy
from specchat.engine.far.host import serve
serve()
"""


def test_standard_output_carries_the_protocol_alone_whatever_libraries_print(tmp_path):
    log = tmp_path / "log"
    driver = Driver(log, [sys.executable, "-c", CHATTER])
    try:
        driver.load()
        tokens, _ = driver.reply(1)
        assert len(tokens) == 60
    finally:
        driver.engine.close()
    for words in ("a library says hello", "raw bytes too", "from a child process"):
        assert words in log.read_text()


def test_closing_standard_input_ends_the_process():
    load = encode(ev.Load(SCRIPTED | {"nodes": 0, "max_tokens": 400}))
    ended = subprocess.run(
        local_command(),
        input=load + encode(ev.Generate(1, HELLO, 7)),
        capture_output=True,
        timeout=PATIENCE_S,
        env=engine_environment(1),
        check=False,
    )
    assert ended.returncode == 0
    said = [decode_event(line) for line in ended.stdout.splitlines()]
    assert isinstance(said[0], ev.Hello)


def test_a_program_that_is_no_engine_is_reported(tmp_path):
    driver = Driver(tmp_path / "log", [sys.executable, "-c", "print('hi, I am a shell')"])
    died = driver.until(ev.Died)
    assert "no event" in died.last_words
    driver.engine.close()


def test_an_engine_that_cannot_start_says_why(tmp_path):
    with pytest.raises(EngineError, match="could not be started: /nowhere/engine"):
        Engine(tmp_path / "log", ["/nowhere/engine"])


def test_the_last_words_of_an_engine_are_kept(tmp_path):
    driver = Driver(tmp_path / "log", [sys.executable, "-c", "import sys; sys.exit('out of luck')"])
    died = driver.until(ev.Died)
    assert died.returncode == 1
    assert "out of luck" in died.last_words
    driver.engine.close()


def test_a_reply_apart_has_its_own_settings_and_leaves_the_chats_alone(driver):
    before = driver.load(drafter="suffix", max_tokens=60).settings
    apart = {"controller": "off", "max_tokens": 12}
    driver.send(ev.Generate(70, HELLO, 7, apart))
    started, finished = driver.until(ev.Started), driver.until(ev.Finished)
    assert (started.settings["controller"], finished.stats.tokens, finished.stats.drafted) == ("off", 12, 0)
    driver.send(ev.Change({}))
    assert driver.until(ev.Changed).settings == before


def test_replies_apart_have_learnt_nothing_from_each_other(driver):
    driver.load(drafter="suffix")
    chats = [driver.reply(id, 7)[1].stats.drafted for id in (71, 72)]
    assert chats[1] > chats[0], "the chat's own drafter remembers its replies"
    drafted = []
    for id in (73, 74):
        driver.send(ev.Generate(id, HELLO, 7, {}))
        drafted.append(driver.until(ev.Finished).stats.drafted)
    assert drafted[0] == drafted[1] < chats[1]


def test_a_reply_apart_with_settings_that_do_not_fit_fails_and_changes_nothing(driver):
    driver.engine.send(ev.Generate(75, HELLO, 7, {"width": 0}))
    failed = driver._next()
    while not isinstance(failed, ev.Failed):
        failed = driver._next()
    assert (failed.id, failed.during) == (75, "generate")
    assert driver.reply(76)[1].stop == "length"


def test_where_two_replies_part_is_told_with_the_margin(driver):
    tokens, _ = driver.reply(77)
    driver.send(ev.Compare(77, HELLO, 7, tokens, tokens))
    assert driver.until(ev.Compared) == ev.Compared(77)
    other = [*tokens[:5], tokens[5] + 1, *tokens[6:]]
    driver.send(ev.Compare(78, HELLO, 7, tokens, other))
    compared = driver.until(ev.Compared)
    assert (compared.place, compared.tie, compared.allowed) == (5, False, 0.0)
    assert compared.margin is None or compared.margin > 0
    assert compared.plain_text != compared.other_text
    driver.send(ev.Compare(79, HELLO, 7, tokens, tokens[:9]))
    assert driver.until(ev.Compared) == ev.Compared(79, 9, compared_text(driver, tokens[9]), "", None, 0.0, False)
    assert driver.reply(80)[0] == tokens, "the chat goes on as before"


def compared_text(driver: Driver, token: int) -> str:
    """How the engine shows a token."""
    driver.send(ev.Compare(99, HELLO, 7, [token], []))
    return driver.until(ev.Compared).plain_text


def test_the_speed_up_is_the_same_told_at_the_end_or_counted_from_the_rounds(driver):
    """The app, recordings and the engine have one definition, and one clock."""
    driver.load(max_tokens=100, controller="fixed", nodes=0)
    driver.send(ev.Pace(1, hold=True, rounds=FEWEST_PLAIN_ROUNDS), ev.Generate(1, HELLO, 7))
    rounds = [driver.until(ev.RoundDone) for _ in range(FEWEST_PLAIN_ROUNDS)]
    driver.send(ev.Change({"nodes": 4}), ev.Pace(1))
    finished = driver.until(ev.Finished)
    gaps = Gaps()
    for round in [*rounds, *driver.rounds()]:
        add_round(gaps, round)
    gaps.end(finished.at_s)
    assert gaps.plain_rounds == finished.stats.plain_rounds >= FEWEST_PLAIN_ROUNDS
    assert gaps.seconds == pytest.approx(finished.at_s - finished.stats.prefill_s, abs=0.01)
    assert gaps.speedup == speedup_of(finished.stats)


def test_a_reply_apart_has_no_plain_rounds(driver):
    """Whoever asks for one measures plain decoding apart."""
    driver.load(max_tokens=100, controller="fixed", nodes=1)
    driver.send(ev.Generate(1, HELLO, 7, {})).until(ev.Finished)
    assert all(round.budget["nodes"] for round in driver.rounds())


def test_a_text_is_gone_on_with_as_it_stands(driver):
    started = driver.send(ev.Generate(81, [], 7, text="A tree is wide where the draft")).until(ev.Started)
    assert (started.messages, started.text) == ([], "A tree is wide where the draft")
    driver.until(ev.Finished)
    text = "".join(piece.text for event in driver.rounds() for piece in event.pieces)
    assert text.startswith(" is unsure and deep")


def test_a_predicted_reply_is_proposed_and_the_text_stays(driver):
    tokens, finished = driver.reply(82)
    text = "".join(piece.text for event in driver.rounds() for piece in event.pieces)
    guided = driver.send(ev.Generate(83, HELLO, 7, reference=text)).until(ev.Finished)
    rounds = driver.rounds()
    assert [piece.token for event in rounds for piece in event.pieces] == tokens
    assert guided.stats.acceptance_length > finished.stats.acceptance_length
    assert "reference" in {draw.proposer for event in rounds for draw in event.tree.draws}


def test_a_reply_to_messages_and_a_text_at_once_is_refused(shared):
    shared.send(ev.Generate(84, HELLO, 7, text="And"))
    with pytest.raises(pytest.fail.Exception, match="answers messages or goes on with a text"):
        shared.until(ev.Started)
