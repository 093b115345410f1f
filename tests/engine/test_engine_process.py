"""The engine as a process of its own: what it answers, what it survives, and what it never prints."""

from __future__ import annotations

import _thread
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from engine_driver import HELLO, PATIENCE_S, SCRIPTED, Driver
from preloading import PRELOADED

from specchat.engine.client.client import Engine, engine_environment, local_command
from specchat.engine.protocol import events as ev
from specchat.engine.protocol.codec import decode_event, encode
from specchat.engine.protocol.commands import Cancel, Change, Count, Generate, Load, Message, Statistics
from specchat.errors import EngineError


def test_hello_says_who_it_is_and_what_it_can_do(shared):
    assert shared.hello.protocol == ev.PROTOCOL
    assert {"drafter", "policy", "rule", "controller"} == {method.family for method in shared.hello.methods}
    assert "temperature" in {option.name for option in shared.hello.settings}


def test_loading_ends_in_ready_with_the_settings_in_force(driver):
    ready = driver.load(temperature=0.5, width=3)
    assert ready.pair == "scripted"
    assert ready.settings["temperature"] == 0.5
    assert ready.settings["width"] == 3
    assert ready.loss.lossless
    assert ready.context_tokens > 0


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
    before = driver.send(Change({})).until(ev.Changed).settings
    failed = driver.send(Change({"depth": 3} | changes)).until(ev.Failed)
    assert said in failed.message
    assert "\n" not in failed.message
    assert failed.exit_code == 2
    assert failed.during == "change"
    assert driver.send(Change({})).until(ev.Changed).settings == before


@pytest.mark.parametrize("changes", [{"stop": 5}, {"method_options": 3}, {"stop": [None]}], ids=str)
def test_a_setting_of_the_wrong_shape_is_no_internal_error(driver, changes):
    failed = driver.send(Change(changes)).until(ev.Failed)
    assert "internal error" not in failed.message
    assert failed.exit_code == 2


def test_counting_reads_nothing(driver):
    counted = driver.send(Count(13, HELLO)).until(ev.Counted)
    driver.load(max_tokens=1)
    driver.reply(14)
    assert counted.id == 13
    assert counted.tokens == driver.passed[0].prompt_tokens
    assert counted.context_tokens > counted.tokens


def test_statistics_add_up_over_replies(driver):
    before = driver.send(Statistics()).until(ev.Totals)
    _, first = driver.reply(15)
    _, second = driver.reply(16, seed=9)
    after = driver.send(Statistics()).until(ev.Totals)
    assert after.replies == before.replies + 2
    assert after.stats.tokens == before.stats.tokens + first.stats.tokens + second.stats.tokens
    assert after.stats.accepted == before.stats.accepted + first.stats.accepted + second.stats.accepted


def test_a_failed_load_keeps_the_pair_that_runs(driver):
    failed = driver.send(Load({"pair": "scirpted"})).until(ev.Failed)
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
    failed = own.send(Change({"drafter": "draft_model"})).until(ev.Failed)
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
    "no JSON": b"this is not JSON",
    "no command": b'{"type":"dance"}',
    "no type": b"{}",
    "a list": b"[1,2]",
    "a missing field": b'{"type":"generate","id":1}',
    "zeros": b"\x00" * 50,
    "no text": b'{"type":"count","id":1,"messages":[{"role":"user","content":"\xff\xfe"}]}',
    "very deep": b'{"type":"change","settings":{"a":' + b"[" * 10_000 + b"]" * 10_000 + b"}}",
}


def test_an_unknown_role_is_refused_in_one_line(driver):
    failed = driver.send(Generate(19, [Message("wizard", "hi")])).until(ev.Failed)
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
    shared.send(Statistics()).until(ev.Totals)


# -------------------------------------------------------------------------------------- engines of one's own


def test_asking_before_anything_is_loaded_is_refused(own):
    own.send(Generate(1, HELLO), Count(2, HELLO), Change({}), Statistics())
    failed = [own.until(ev.Failed) for _ in range(3)]
    assert [event.id for event in failed] == [1, 2, None]
    assert all("no pair is loaded" in event.message for event in failed)
    assert own.until(ev.Totals).replies == 0


def test_a_killed_engine_is_reported_in_the_middle_of_a_round(own):
    own.load(nodes=0, max_tokens=400)
    own.send(Generate(1, HELLO, 7)).until(ev.RoundDone)
    os.kill(own.engine.pid, signal.SIGKILL)
    died = own.until(ev.Died)
    assert died.returncode == -signal.SIGKILL
    assert died.last_words.endswith("it was killed, as the system does when memory runs out")
    assert not own.engine.alive
    own.send(Statistics())  # and a command to it does no harm


def test_a_load_may_be_stopped_before_it_has_begun(own):
    own.send(Load(SCRIPTED), Cancel(None))
    assert own.until(ev.Failed, ev.Ready).__class__ is ev.Failed
    assert own.load().pair == "scripted"


CHATTER = """
import os, sys
import specchat.engine.server.pair_loading as pairs
load = pairs.load_scripted
def noisy(*arguments):
    print("a library says hello")
    sys.stdout.write("and writes")
    os.write(1, b"raw bytes too\\n")
    os.system("echo from a child process")
    return load(*arguments)
pairs.load_scripted = noisy
from specchat.engine.server.host import serve
serve()
"""


def test_standard_output_carries_the_protocol_alone_whatever_libraries_print(tmp_path, monkeypatch):
    monkeypatch.delenv(PRELOADED, raising=False)  # the engine is the process that is seen
    log = tmp_path / "log"
    driver = Driver(log, [sys.executable, "-c", CHATTER])
    try:
        assert driver.until(ev.Hello).pid == driver.engine.pid
        driver.load()
        tokens, _ = driver.reply(1)
        assert len(tokens) == 60
    finally:
        driver.engine.close()
    for words in ("a library says hello", "raw bytes too", "from a child process"):
        assert words in log.read_text()


def test_onednn_keeps_few_shapes_unless_the_user_says_how_many():
    name = "ONEDNN_PRIMITIVE_CACHE_CAPACITY"
    assert engine_environment(base={})[name] == "64"
    assert engine_environment(base={name: "9"})[name] == "9"


def test_closing_standard_input_ends_the_process():
    load = encode(Load(SCRIPTED | {"nodes": 0, "max_tokens": 400}))
    ended = subprocess.run(
        local_command(),
        input=load + encode(Generate(1, HELLO, 7)),
        capture_output=True,
        timeout=PATIENCE_S,
        env=engine_environment(1),
        check=False,
    )
    assert ended.returncode == 0
    said = [decode_event(line) for line in ended.stdout.splitlines()]
    assert isinstance(said[0], ev.Hello)


def test_an_engine_whose_reader_goes_away_in_a_reply_ends_calmly_while_its_input_stays_open():
    engine = subprocess.Popen(
        local_command(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=engine_environment(1),
    )
    assert engine.stdin
    assert engine.stdout
    assert engine.stderr
    engine.stdin.write(encode(Load(SCRIPTED | {"max_tokens": 100_000})) + encode(Generate(1, HELLO)))
    engine.stdin.flush()
    while b'"type":"round"' not in engine.stdout.readline():
        pass
    engine.stdout.close()
    assert engine.wait(PATIENCE_S) == 0
    assert b"Traceback" not in engine.stderr.read()
    engine.stdin.close()
    engine.stderr.close()


def test_a_program_that_is_no_engine_is_reported(tmp_path):
    driver = Driver(tmp_path / "log", [sys.executable, "-c", "print('hi, I am a shell')"])
    died = driver.until(ev.Died)
    assert "not an event" in died.last_words
    driver.engine.close()


@pytest.mark.parametrize(
    ("first", "why"),
    [
        (
            '{"type":"hello","protocol":7,"specchat":"9.9","methods":[],"settings":[],"pid":1}',
            "the engine speaks version 7 of the protocol, this specchat version 1",
        ),
        ('{"type":"hello","protocol":7,"methods":{"other":"form"}}', "the engine speaks version 7 of the protocol"),
        ('{"type":"loading","stage":"read","item":"weights"}', "the engine did not begin with 'hello'"),
    ],
)
def test_an_engine_that_speaks_another_version_is_refused_at_its_first_line(tmp_path, first, why):
    driver = Driver(tmp_path / "log", [sys.executable, "-c", f"print({first!r}, flush=True); input()"])
    died = driver._next()
    assert isinstance(died, ev.Died)
    assert why in died.last_words
    driver.engine.close()
    assert not driver.engine.alive


def test_an_engine_that_cannot_start_says_why(tmp_path):
    with pytest.raises(EngineError, match="could not be started: /nowhere/engine"):
        Engine(tmp_path / "log", ["/nowhere/engine"])


def test_the_last_words_of_an_engine_are_kept(tmp_path):
    no_utf8 = "import sys; sys.stderr.buffer.write(b'\\xb5 out of luck'); sys.exit(1)"
    driver = Driver(tmp_path / "log", [sys.executable, "-c", no_utf8])
    died = driver.until(ev.Died)
    assert died.returncode == 1
    assert "out of luck" in died.last_words
    driver.engine.close()


def test_an_engine_that_used_up_its_processor_time_is_said_to_have(tmp_path):
    ended = "import os, signal; os.kill(os.getpid(), signal.SIGPROF)"
    died = Driver(tmp_path / "log", [sys.executable, "-c", ended]).until(ev.Died)
    assert died.last_words == "the model's tokenizer or chat template used up its processor time and was ended"


@pytest.mark.skipif(sys.platform == "win32", reason="a mapped file cannot be shortened there")
def test_an_engine_whose_mapped_file_was_shortened_is_said_to_have_lost_it(tmp_path):
    file = tmp_path / "model.gguf"
    file.write_bytes(bytes(1 << 16))
    read = (
        "import mmap, os, sys; file = open(sys.argv[1], 'r+b'); mapped = mmap.mmap(file.fileno(), 0);"
        " os.truncate(file.fileno(), 0); mapped[5000]"
    )
    died = Driver(tmp_path / "log", [sys.executable, "-c", read, str(file)]).until(ev.Died)
    assert died.last_words == (
        "a model's file could no longer be read: it was shortened or replaced, or its disk failed"
    )


def test_a_signal_that_comes_just_before_a_wait_ends_the_wait_all_the_same(tmp_path):
    silent = Engine(tmp_path / "log", [sys.executable, "-c", "import sys; sys.stdin.read()"])
    late: list[bool] = []

    def give_up() -> None:
        late.append(True)
        silent._put(ev.Died(None, "the signal had no effect"))

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    # this marks the signal as arrived and wakes nobody, as a signal does that is handled just before the wait begins
    signalled, patience = threading.Timer(0.2, _thread.interrupt_main), threading.Timer(60.0, give_up)
    signalled.start()
    patience.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            list(silent.events())
    finally:
        signal.signal(signal.SIGINT, before)
    patience.cancel()
    silent.close()
    assert not late
