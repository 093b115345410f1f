"""The library: what a program or a notebook sees of the engine."""

from __future__ import annotations

import doctest
import html
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from real_weights import HOME, fetched

import specchat
from specchat.engine.protocol.codec import encode
from specchat.engine.protocol.commands import Cancel, Command, Generate, Load, Message
from specchat.engine.protocol.events import Event, Failed, Loading, Ready, RoundDone
from specchat.errors import CombinationError, ConstraintError, EngineError, SpecchatError, UsageError
from specchat.library.session import Session

PAGE = (Path(__file__).parents[1] / "docs/python.md").read_text(encoding="utf-8")


def examples(page: str) -> doctest.DocTest:
    """The page's examples; a fence ends what an example prints."""
    return doctest.DocTestParser().get_doctest(re.sub(r"(?m)^```.*$", "", page), {}, "docs/python.md", None, 0)


def outcome(page: str) -> tuple[doctest.TestResults, str]:
    said: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.IGNORE_EXCEPTION_DETAIL)
    return runner.run(examples(page), out=said.append), "".join(said)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[specchat.Pair]:
    """A pair whose engine runs in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPECCHAT_HOME", str(tmp_path_factory.mktemp("library")))
        with specchat.load("scripted", process=False, max_tokens=60) as loaded:
            yield loaded


def test_the_examples_of_the_page_give_what_it_says(preloaded: None):
    result, said = outcome(PAGE)
    assert result.failed == 0, said
    assert result.attempted > 15


@pytest.mark.real
def test_the_example_with_real_weights_prints_what_fits_its_schema(
    preloaded: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    fetched("smollm2-135m-instruct")
    monkeypatch.setenv("SPECCHAT_HOME", str(HOME))
    exec(PAGE.split("```python\n")[-1].partition("```")[0], {})
    assert "Rome" in json.loads(capsys.readouterr().out)["city"]


def test_an_example_that_is_wrong_would_be_noticed():
    assert outcome("```python\n>>> 1 + 1\n3\n```\n")[0].failed == 1


def test_importing_the_package_imports_neither_the_library_nor_what_it_needs():
    code = "import specchat, sys; print(*sorted(name for name in sys.modules if name.startswith('specchat')))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).split() == ["specchat"]
    assert set(specchat.__all__) <= set(dir(specchat))
    with pytest.raises(AttributeError, match="no attribute 'lode'"):
        specchat.lode  # noqa: B018


def test_text_tokens_and_rounds_are_those_of_the_reply(pair: specchat.Pair):
    reply = pair.stream("What are you?", drafter="suffix", policy="best_first", seed=4)
    assert "".join(reply) == reply.text
    assert reply.started.seed == 4
    assert reply.tokens == [piece.token for round in reply.rounds for piece in round.pieces]
    assert reply.stats.rounds == len(reply.rounds) == len(list(reply.rounds))
    assert pair.stream("What are you?", controller="off", seed=4).text == reply.text


def test_a_round_is_the_record_on_the_wire_and_draws_its_tree(pair: specchat.Pair):
    reply = pair.stream("What are you?", drafter="prompt_lookup", policy="best_first")
    round = max(reply.rounds, key=lambda round: len(round.tree.tokens))
    assert isinstance(round, RoundDone)
    sent = RoundDone(*(getattr(round, name) for name in RoundDone.__struct_fields__))
    assert encode(round) == encode(sent)
    lines = str(round).split("\n")
    assert len(lines) == len(round.tree.tokens) + 1
    assert lines[0] == round.tree.texts[0].replace(" ", "·").replace("\n", "⏎")
    assert sum("★" in line for line in lines) == 1
    assert round.__rich__().plain == str(round)


def test_a_notebook_shows_a_round_and_what_has_come_of_a_reply_as_pages_in_frames(pair: specchat.Pair):
    reply = pair.stream("What are you?", drafter="suffix")
    reply.rounds[1]
    shown = [reply._repr_html_(), reply.rounds[0]._repr_html_()]
    pages = [html.unescape(re.findall('srcdoc="([^"]*)"', frame)[0]) for frame in shown]
    told = [json.loads(re.findall('(?s)id="rounds">(.*?)</script>', page)[0])["replies"] for page in pages]
    assert [len(rounds) for (rounds,) in told] == [2, 1]
    assert "What are you?" in pages[0]
    assert all("<main>" in page and page.endswith("</html>\n") for page in pages)
    assert repr(reply) == "<ReplyStream: 2 rounds, being written>"


def test_a_tree_shows_no_control_characters(pair: specchat.Pair):
    round = pair.stream("Hi", max_tokens=1).rounds[0]
    hostile = msgspec.structs.replace(
        round,
        verdict=msgspec.structs.replace(round.verdict, bonus_text="\x1b[31m\u202e\n", bonus_logprob=None),
        pieces=[],
    )
    assert str(hostile).split("\n")[1:] == ["╰─★ ␛[31m⟨202e⟩⏎"]


def test_rounds_come_as_they_are_asked_for(pair: specchat.Pair):
    reply = pair.stream("What are you?")
    assert reply.rounds[2].index == 2
    assert repr(reply) == "<ReplyStream: 3 rounds, being written>"
    assert [round.index for round in reply.rounds[:2]] == [0, 1]
    assert reply.finished.stop == "length"
    with pytest.raises(IndexError):
        reply.rounds[10_000]


def test_settings_hold_for_one_reply_and_those_of_the_pair_come_back(pair: specchat.Pair):
    changed = pair.stream("Hi", max_tokens=3, **{"suffix.depth": 5}).started.settings
    assert (changed["max_tokens"], changed["method_options"]) == (3, {"suffix.depth": 5})
    after = pair.stream("Hi")
    assert (after.started.settings["max_tokens"], after.started.settings["method_options"]) == (60, {})
    assert after.started.reused_tokens > 0
    after.cancel()


@pytest.mark.parametrize(
    ("asked", "kind", "said"),
    [
        ({"drafter": "sufix"}, UsageError, "did you mean 'suffix'"),
        ({"drafte": "suffix"}, UsageError, "did you mean 'drafter'"),
        ({"suffix.dept": 3}, UsageError, "did you mean 'depth'"),
        ({"temperature": 99}, UsageError, "outside its range"),
        ({"dtype": "int8"}, UsageError, "takes effect when a pair is loaded"),
        ({"drafter": "hydra"}, CombinationError, "hydra"),
        ({"seed": -2}, UsageError, "outside its range"),
        ({"json_schema": {"type": {1}}}, UsageError, "cannot be written as JSON"),
        ({"regex": "["}, ConstraintError, "regular expression"),
        ({"regex": "a", "grammar": "b"}, UsageError, "one of json_schema, regex and grammar"),
        ({"messages": []}, UsageError, "no message"),
        ({"messages": [{"role": "wizard", "content": ""}]}, UsageError, "role"),
        ({"messages": 3}, UsageError, "no messages of a chat"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line_and_the_pair_stays_usable(pair: specchat.Pair, asked, kind, said):
    with pytest.raises(kind, match=said) as refused:
        pair.stream(**{"messages": "Hi", **asked}).finished  # noqa: B018
    assert "\n" not in str(refused.value)
    assert pair.stream("Hi", max_tokens=2).finished.stop == "length"


def test_a_budget_and_a_pair_that_do_not_exist_are_refused(pair: specchat.Pair):
    with pytest.raises(UsageError, match="did you mean 'small'"):
        pair.check("smal")  # type: ignore[arg-type]
    with pytest.raises(SpecchatError, match="did you mean 'scripted'"):
        specchat.load("scriptd")


def test_a_reply_is_held_to_a_schema(pair: specchat.Pair):
    schema = {"type": "object", "properties": {"n": {"enum": ["one", "two"]}}, "required": ["n"]}
    schema["additionalProperties"] = False
    assert json.loads(pair.stream("Hi", json_schema=schema).text)["n"] in ("one", "two")


def test_a_second_reply_meanwhile_is_refused_and_cancelling_frees_the_pair(pair: specchat.Pair):
    reply = pair.stream("What are you?")
    with pytest.raises(UsageError, match="writing a reply"):
        pair.stream("Hi")
    pair.cancel()
    assert reply.finished.stop == "cancelled"


def test_an_error_in_the_loop_over_a_reply_cancels_it(pair: specchat.Pair):
    reply = pair.stream("What are you?")
    with pytest.raises(ZeroDivisionError):
        [1 / 0 for _ in reply]
    assert reply.finished.stop == "cancelled"
    assert len(pair.stream("Hi", max_tokens=2).tokens) == 2


def test_ctrl_c_while_waiting_cancels_the_reply_and_the_pair_stays_usable(pair: specchat.Pair):
    reply = pair.stream("What are you?", max_tokens=2000)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a process in the background ignores the signal
    try:
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            sum(len(reply.text) for _ in itertools.count())  # the signal may come after the end of the reply
    finally:
        signal.signal(signal.SIGINT, before)
    assert reply.finished.stop in ("cancelled", "end")
    assert len(pair.stream("Hi", max_tokens=2).tokens) == 2


class Interrupted:
    """An engine whose second loading is interrupted by Ctrl+C, and answered afterwards."""

    def __init__(self, ready: Ready) -> None:
        self.sent: list[Command] = []
        late = Failed("EngineError", "loading was cancelled", during="load")
        self._events: list[Event | None] = [ready, None, late, ready]

    def send(self, command: Command) -> None:
        self.sent.append(command)

    def events(self) -> Iterator[Event]:
        while (event := self._events.pop(0)) is not None:
            yield event
        raise KeyboardInterrupt

    def close(self) -> None: ...


def test_a_reply_that_nobody_holds_is_stopped_by_the_next(pair: specchat.Pair):
    engine = Interrupted(pair.ready)
    asked = specchat.Pair(Session(engine, print), {"pair": "scripted"})
    asked.stream("What are you?")
    second = asked.stream("Hi")
    assert engine.sent[1:] == [
        Generate(1, [Message("user", "What are you?")]),
        Cancel(1),
        Generate(2, [Message("user", "Hi")]),
    ]
    assert second.id == 2


def test_ctrl_c_while_settings_change_leaves_nothing_behind(pair: specchat.Pair):
    engine = Interrupted(pair.ready)
    interrupted = specchat.Pair(Session(engine, print), {"pair": "scripted"})
    with pytest.raises(KeyboardInterrupt):
        interrupted.stream("Hi", max_tokens=3)
    assert isinstance(engine.sent[-1], Cancel)
    interrupted.stream("Hi", max_tokens=3)
    assert [type(command) for command in engine.sent[-2:]] == [Load, Generate]


def test_an_engine_that_dies_is_one_error_and_its_log_goes(preloaded: None):
    told: list[str] = []
    pair = specchat.load("scripted", progress=lambda event: told.append(type(event).__name__))
    assert Loading.__name__ in told
    log = pair._session.engine.log
    assert log.exists()
    reply = pair.stream("What are you?", max_tokens=2000)
    assert next(iter(reply.rounds)).index == 0
    os.kill(pair._session.engine.pid, signal.SIGKILL)
    for again in range(2):
        with pytest.raises(EngineError, match="is gone" if again else "engine died"):
            pair.stream("Hi").finished  # noqa: B018
    assert not log.exists()


def test_an_engine_that_ends_in_this_process_is_one_error(monkeypatch: pytest.MonkeyPatch):
    from specchat.engine.server.worker import Worker

    def fail(*_: object) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr(Worker, "run", fail)
    with pytest.raises(EngineError, match="the engine died: no room"):
        specchat.load("scripted", process=False)
