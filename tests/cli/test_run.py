"""`specchat run` and `specchat methods` as a user meets them: what they print, where, and how they exit."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from specchat.cli.flags import Output
from specchat.cli.run_output import Outputs, command_line
from specchat.decoding.families import methods
from specchat.engine.protocol import events as ev
from specchat.engine.protocol.codec import decode_event
from specchat.engine.protocol.commands import Message
from specchat.registry import options_of

pytestmark = pytest.mark.usefixtures("preloaded")

PROGRAM = [sys.executable, "-m", "specchat"]
SCRIPTED = ["--pair", "scripted", "--seed", "7"]
PATIENCE_S = 60


def specchat(*words: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
    given = {"input": text} if text is not None else {"stdin": subprocess.DEVNULL}
    return subprocess.run([*PROGRAM, *words], capture_output=True, text=True, timeout=PATIENCE_S, check=False, **given)


def run(*words: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
    return specchat("run", *SCRIPTED, *words, text=text)


def one_line(ended: subprocess.CompletedProcess[str]) -> str:
    """What was said on standard error: exactly one line, and no traceback."""
    lines = ended.stderr.strip().splitlines()
    assert len(lines) == 1, ended.stderr
    assert lines[0].startswith("specchat: ")
    assert "Traceback" not in ended.stderr
    return lines[0]


# ----------------------------------------------------------------------------------------------- output


def test_json_is_one_object_with_the_agreed_keys():
    ended = run("--output", "json", "--max-tokens", "20", "--temperature", "0.8", "Hello")
    assert ended.returncode == 0
    result = json.loads(ended.stdout)
    assert list(result) == [
        "text", "tokens", "stop", "pair", "drafter", "policy", "rule", "controller", "lossless", "seed", "stats",
    ]  # fmt: skip
    assert (result["stop"], result["pair"], result["seed"], result["lossless"]) == ("length", "scripted", 7, True)
    assert len(result["tokens"]) == result["stats"]["tokens"] == 20
    asked = {
        "rounds", "tokens", "drafted", "accepted", "tokens_per_s", "acceptance_length", "acceptance_rate",
        "prefill_s", "draft_s", "verify_s", "other_s",
    }  # fmt: skip
    assert asked <= set(result["stats"])
    assert ended.stderr == ""


ROUNDING_ENGINE = """
from specchat.engine.server.loaded_pair import LoadedPair
LoadedPair.exact = property(lambda pair: False)
from specchat.engine.server.host import serve
serve()
"""


@pytest.mark.parametrize("race", [(), ("--race",)])
def test_json_names_the_number_format_whose_near_ties_may_part_a_text_from_plain_decodings(race):
    engine = shlex.join([sys.executable, "-c", ROUNDING_ENGINE])
    ended = run("--engine", engine, "--output", "json", "--max-tokens", "5", *race, "Hello")
    result = json.loads(ended.stdout)
    claim = result["same_text"] if race else result
    assert (claim["lossless"], claim["near_ties"]) == (True, "float32")


def test_text_is_the_reply_and_nothing_else_and_a_recording_holds_every_event(tmp_path):
    file = tmp_path / "run.jsonl"
    ended = run("--record", str(file), "--max-tokens", "20", "--temperature", "0.8", "Hello")
    assert ended.returncode == 0
    events = [decode_event(line) for line in file.read_bytes().splitlines()]
    assert [type(event) for event in (events[0], events[-1])] == [ev.Header, ev.Finished]
    kinds = {type(event) for event in events}
    assert kinds == {ev.Header, ev.Ready, ev.Started, ev.Prefilled, ev.RoundDone, ev.Finished} or kinds == {
        ev.Header, ev.Ready, ev.Started, ev.RoundDone, ev.Finished,
    }  # fmt: skip
    rounds = [event for event in events if isinstance(event, ev.RoundDone)]
    assert all(event.verdict.bonus is None or event.verdict.bonus_logprob is not None for event in rounds)
    pieces = [piece.text for event in rounds for piece in event.pieces]
    assert ended.stdout == "".join(pieces) + events[-1].tail + "\n"
    assert ended.stderr == ""
    assert file.stat().st_mode & 0o077 == 0


def test_a_recording_of_a_long_prompt_can_be_read_and_names_the_command_without_it(tmp_path):
    file, prompt = tmp_path / "run.jsonl", "wide \t\n" * 12_000
    assert run("--record", str(file), "--max-tokens", "5", "--system=Be brief.", prompt).returncode == 2, "too long"
    header = decode_event(file.read_bytes().splitlines()[0])
    assert header.command == f"specchat run --pair scripted --seed 7 --record {file} --max-tokens 5 --system=… …"


@pytest.mark.parametrize("words", [["run", "it's a test"], ["run", "--set", "a=b c", "--seed", "3"]])
def test_the_command_of_a_recording_can_be_typed_again(words):
    assert shlex.split(command_line(words, ["another"])) == ["specchat", *words]
    assert len(command_line([*words, "x" * 100_000], [])) < 5000


def test_jsonl_is_the_event_stream_and_the_prompt_may_come_through_a_pipe():
    ended = run("--output", "jsonl", "--max-tokens", "10", "--system", "Be brief.", text="Hello\n")
    assert ended.returncode == 0
    events = [decode_event(line) for line in ended.stdout.encode().splitlines()]
    started = next(event for event in events if isinstance(event, ev.Started))
    assert started.messages == [Message("system", "Be brief."), Message("user", "Hello")]
    assert isinstance(events[-1], ev.Finished)
    assert isinstance(events[0], ev.Header)


def test_a_prompt_and_a_pipe_go_together():
    ended = run("--output", "jsonl", "--max-tokens", "1", "Sum this up:", text="a text\n")
    events = [decode_event(line) for line in ended.stdout.encode().splitlines()]
    started = next(event for event in events if isinstance(event, ev.Started))
    assert started.messages == [Message("user", "Sum this up:\n\na text")]


# ------------------------------------------------------------------------------------------- interruption


def interrupted(*words: str) -> tuple[subprocess.Popen[str], str]:
    """A run that was interrupted by Ctrl+C right after its first output."""
    process = subprocess.Popen(
        [*PROGRAM, "run", *SCRIPTED, "--nodes", "0", "--max-tokens", "400", "--temperature", "0.8", *words, "Hello"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    # Not by process.stdout.read: what that reads ahead, `communicate` never sees.
    return process, os.read(process.stdout.fileno(), 1).decode() if "json" not in words else ""


def test_ctrl_c_keeps_the_partial_text_and_exits_with_130(tmp_path):
    file = tmp_path / "run.jsonl"
    process, first = interrupted("--record", str(file))
    process.send_signal(signal.SIGINT)
    rest, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert errors == ""
    events = [decode_event(line) for line in file.read_bytes().splitlines()]
    assert isinstance(events[-1], ev.Finished), "the recording ends with the reply's own end"
    assert events[-1].stop == "cancelled"
    pieces = [piece.text for event in events if isinstance(event, ev.RoundDone) for piece in event.pieces]
    assert first + rest == "".join(pieces) + events[-1].tail + "\n"


SILENT_ENGINE = "import sys, time; print('here', file=sys.stderr, flush=True); time.sleep(60)"


def test_ctrl_c_before_the_reply_has_begun_just_leaves():
    process = subprocess.Popen(
        [*PROGRAM, "run", *SCRIPTED, "--engine", shlex.join([sys.executable, "-c", SILENT_ENGINE]), "Hello"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    logs = Path(os.environ["SPECCHAT_HOME"]) / "state" / "logs"
    while process.poll() is None and not any(log.read_text() for log in logs.glob("engine-*.log")):
        os.sched_yield()  # the engine's own first words say that the run waits for it now
    process.send_signal(signal.SIGINT)
    said, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert said == ""
    assert "Traceback" not in errors


# ------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--width", "0"], "width = 0 is outside its range: 1 to 64"),
        (["--temperature", "nan"], "temperature"),
        (["--temperature", "-1"], "0, or 1e-06 to 10"),
        (["--temperature", "1e-320"], "temperature = 1e-320 is outside its range: 0, or 1e-06 to 10"),
        (["--top-p", "1.5"], "0 to 1"),
        (["--set", "nonsense"], "METHOD.OPTION=VALUE"),
        (["--record", "/nowhere/at/all"], "/nowhere/at/all"),
        (["--engine", "'unclosed"], "command line"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_value_that_cannot_be_is_refused_before_anything_starts(words, said):
    ended = run(*words, "Hello")
    assert ended.returncode == 2
    assert ended.stdout == ""
    assert said in one_line(ended)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--drafter", "chian"], "chian"),
        (["--policy", "chian"], "did you mean 'chain'?"),
        (["--set", "expansion.widths=x"], "whole numbers from 1"),
        (["--pair", "alone", "--drafter", "draft_model"], "nearest that works"),
        (["--pair", "scirpted"], "scripted"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_does_not_exist_or_does_not_fit_is_one_line_and_exit_code_2(words, said):
    folder = Path(os.environ["SPECCHAT_HOME"]) / "config"
    folder.mkdir()
    (folder / "models.toml").write_text('[pairs.alone]\ntarget = "scripted"\n')
    ended = run(*words, "Hello")
    assert ended.returncode == 2
    assert ended.stdout == ""
    assert said in one_line(ended)


def test_no_prompt_at_all_is_said_and_is_exit_code_2():
    ended = run(text="")
    assert ended.returncode == 2
    assert "there is no prompt" in one_line(ended)


def test_an_engine_that_dies_is_said_and_is_exit_code_1():
    ended = run("--engine", f"{sys.executable} -c 'raise SystemExit(\"out of luck\")'", "Hello")
    assert ended.returncode == 1
    assert "out of luck" in one_line(ended)


def test_a_program_that_is_not_there_is_said_and_is_exit_code_1():
    ended = run("--engine", "/nowhere/engine", "Hello")
    assert ended.returncode == 1
    assert "/nowhere/engine" in one_line(ended)


def test_a_flag_that_does_not_exist_is_exit_code_2():
    ended = run("--wdith", "3", "Hello")
    assert ended.returncode == 2
    assert "--width" in ended.stderr
    assert "Traceback" not in ended.stderr


# ------------------------------------------------------------------------------------------------ methods


def test_methods_as_json_is_the_tables():
    ended = specchat("methods", "--output", "json")
    assert ended.returncode == 0
    listed = json.loads(ended.stdout)
    assert [(m["family"], m["name"]) for m in listed] == [(family, method.name) for family, method in methods()]
    told = ("summary", "source", "lossless", "needs_draft_model")
    assert [[m[name] for name in told] for m in listed] == [
        [getattr(method, name) for name in told] for _, method in methods()
    ]
    assert [len(m["options"]) for m in listed] == [len(options_of(method.options)) for _, method in methods()]


def test_methods_as_text_names_them_all():
    ended = specchat("methods")
    assert ended.returncode == 0
    for _, method in methods():
        assert method.name in ended.stdout


def test_a_home_where_nothing_can_be_written_still_answers(monkeypatch):
    monkeypatch.setenv("SPECCHAT_HOME", "/dev/null/home")
    ended = run("--max-tokens", "5", "Hello")
    assert ended.returncode == 0
    assert ended.stdout.strip()
    assert ended.stderr == ""


def test_a_notice_goes_to_standard_error_and_into_no_recording(tmp_path, capsys):
    with Outputs(Output.text, tmp_path / "r.jsonl") as sinks:
        sinks.event(ev.Counted(1, 5, 100))
        sinks.event(ev.Notice("drafter hydra: \x1b[2J nothing"))
        sinks.notice("drafter hydra: \x1b[2J nothing")
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("specchat: drafter hydra: ")
    assert "\x1b" not in said.err
    kinds = [type(decode_event(line)) for line in (tmp_path / "r.jsonl").read_bytes().splitlines()]
    assert kinds == [ev.Header, ev.Counted]


def test_a_command_that_is_refused_leaves_the_recording_that_was_there(tmp_path):
    before, none = tmp_path / "before.jsonl", tmp_path / "none.jsonl"
    before.write_text("an earlier recording\n")
    for file in (before, none):
        assert run("--pair", "nosuch", "--record", str(file), "hi").returncode == 2
    assert before.read_text() == "an earlier recording\n"
    assert not none.exists()


def test_a_recording_takes_the_place_of_a_longer_one(tmp_path):
    file = tmp_path / "r.jsonl"
    file.write_text("x" * 1_000_000)
    with Outputs(Output.text, file) as sinks:
        sinks.event(ev.Counted(1, 5, 100))
    kinds = [type(decode_event(line)) for line in file.read_bytes().splitlines()]
    assert kinds == [ev.Header, ev.Counted]


def test_a_recording_may_go_to_a_pipe(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    with Outputs(Output.text, tmp_path / "pipe") as sinks:
        sinks.event(ev.Counted(1, 5, 100))
    kinds = [type(decode_event(line)) for line in os.read(reader, 1 << 16).splitlines()]
    os.close(reader)
    assert kinds == [ev.Header, ev.Counted]


@pytest.mark.parametrize("engine", ["yes", "cat /dev/zero"])
def test_a_program_that_is_no_engine_is_told_in_one_short_line(engine):
    ended = run("--engine", engine, "hi")
    assert ended.returncode == 1
    assert one_line(ended).startswith("specchat: the engine died: the engine sent a line that is not an event (")
    assert len(ended.stderr) < 300


def test_an_engine_of_another_version_is_told_in_one_line():
    hello = '{"type":"hello","protocol":7,"specchat":"9.9","methods":[],"settings":[]}'
    ended = run("--engine", shlex.join([sys.executable, "-c", f"print({hello!r}, flush=True); input()"]), "hi")
    assert ended.returncode == 1
    assert "the engine speaks version 7 of the protocol, this specchat version 1" in one_line(ended)


# ------------------------------------------------------------------------------------------ constraints


def test_a_schema_an_expression_and_a_grammar_hold_the_reply(tmp_path):
    schema, grammar = tmp_path / "schema.json", tmp_path / "sum.lark"
    kinds = {"properties": {"kind": {"enum": ["tree", "chain"]}}, "required": ["kind"], "additionalProperties": False}
    schema.write_text(json.dumps({"type": "object", **kinds}))
    grammar.write_text('start: term "+" term\nterm: /[0-9]{1,3}/')
    said = run("--json-schema", str(schema), "--max-tokens", "60", "What?")
    assert json.loads(said.stdout)["kind"] in ("tree", "chain")
    assert re.fullmatch(r"\d{1,3}\+\d{1,3}", run("--grammar", str(grammar), "What?").stdout.strip())
    plain = run("--regex", "The (tree|chain) is (wide|deep)[.]", "--controller", "off", "What?")
    assert re.fullmatch("The (tree|chain) is (wide|deep)[.]", plain.stdout.strip())
    assert run("--regex", "The (tree|chain) is (wide|deep)[.]", "What?").stdout == plain.stdout


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--json-schema", "no/such/file"], "cannot be read"),
        (["--regex", "("], "cannot be used"),
        (["--regex", "a", "--grammar", "b"], "one of"),
        (["--regex", "a", "--race"], "leave out"),
    ],
)
def test_a_constraint_that_cannot_be_used_ends_with_one_line_and_code_2(words, why):
    ended = run(*words, "What?")
    assert ended.returncode == 2
    assert why in one_line(ended)
