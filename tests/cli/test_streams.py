"""Standard input that is no text, output that is full, closed or not read: one line and an exit code."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from specchat.engine.protocol import codec
from specchat.engine.protocol.commands import Generate, Message
from specchat.models.machine import threads_for

pytestmark = pytest.mark.usefixtures("preloaded")

SCRIPTED = "run --pair scripted --seed 7 --max-tokens 4"

full = pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")


def shell(line: str, text: bytes = b"", **environment: str) -> subprocess.CompletedProcess[bytes]:
    """A line for the shell, in which `specchat` is this one."""
    program = f"{sys.executable} -m specchat"
    return subprocess.run(
        ["bash", "-c", "set -o pipefail; " + line.replace("specchat", program, 1)],
        input=text, capture_output=True, timeout=60, env={**os.environ, **environment},
    )  # fmt: skip


@pytest.mark.parametrize("locale", ["C", "C.UTF-8"])
def test_input_that_is_no_text_is_told_with_its_line_and_waits_for_nothing(locale):
    ended = shell(f"specchat {SCRIPTED}", b"one\ncaf\xe9", LC_ALL=locale)
    assert ended.returncode == 2
    assert ended.stderr == b"specchat: standard input is not UTF-8: line 2 holds the byte 0xe9\n"


@full
@pytest.mark.parametrize("command", ["methods", "methods --output json", f"{SCRIPTED} hi", "config path"])
def test_an_output_without_room_is_told_once(command):
    ended = shell(f"specchat {command} >/dev/full")
    assert ended.returncode == 1
    assert ended.stderr == b"specchat: standard output cannot be written: No space left on device\n"


@full
def test_a_recording_without_room_costs_the_recording_and_not_the_reply():
    ended = shell(f"specchat {SCRIPTED} --record /dev/full hi")
    assert ended.stdout == shell(f"specchat {SCRIPTED} hi").stdout
    assert ended.stderr == b"specchat: --record /dev/full is not complete: No space left on device\n"
    assert ended.returncode == 1


@pytest.mark.parametrize("command", ["methods", f"{SCRIPTED} hi", f"{SCRIPTED} --output jsonl hi"])
def test_an_output_that_is_closed_is_told(command):
    ended = shell(f"specchat {command} >&-")
    assert ended.returncode == 1
    assert ended.stderr == b"specchat: standard output cannot be written: Bad file descriptor\n"


@pytest.mark.parametrize("command", ["methods", f"{SCRIPTED} hi", f"{SCRIPTED} --output jsonl hi", "chats list"])
def test_closed_streams_are_no_traceback(command):
    assert b"Traceback" not in shell(f"specchat {command} <&- >&-").stderr
    assert shell(f"specchat {command} <&- >&- 2>&-").returncode in (0, 1)


@pytest.mark.parametrize(
    "command",
    [
        "methods",
        "methods --output jsonl",
        "models list",
        "-h",
        "run -h",
        f"{SCRIPTED} hi",
        f"{SCRIPTED} --output jsonl hi",
    ],
)
def test_a_reader_that_leaves_early_ends_a_command_in_silence_with_the_code_of_sigpipe(command):
    ended = shell(f"specchat {command} | true")  # which is gone before the first line is written
    assert (ended.stdout, ended.stderr) == (b"", b"")
    assert ended.returncode == 128 + signal.SIGPIPE


def test_a_reader_that_leaves_amid_a_reply_ends_it():
    ended = shell(f"specchat {SCRIPTED.replace('4', '100000')} hi | head -c1")
    assert (len(ended.stdout), ended.stderr) == (1, b"")
    assert ended.returncode == 128 + signal.SIGPIPE


@pytest.mark.parametrize(("command", "cells"), [("methods", b"token_recycling"), ("models list", b"qwen3, qwen3-l")])
def test_tables_cut_nothing_in_a_pipe(command, cells):
    ended = shell(f"specchat {command}", COLUMNS="40")
    assert ended.returncode == 0
    assert "…".encode() not in ended.stdout
    assert cells in ended.stdout


def test_a_character_that_the_output_lacks_stops_no_command():
    ended = shell("specchat methods", PYTHONIOENCODING="ascii")
    assert (ended.returncode, ended.stderr) == (0, b"")


def test_half_of_a_surrogate_pair_is_sent_as_a_replacement_character():
    command = Generate(1, [Message("user", "caf\udce9 \U0001f333")])
    assert codec.decode_command(codec.encode(command)).messages == [Message("user", "caf\ufffd \U0001f333")]


def test_more_threads_than_cores_are_refused():
    cores = os.cpu_count() or 1
    assert threads_for(cores) == cores
    with pytest.raises(Exception, match=f"threads = {cores + 1} is more than the {cores} cores"):
        threads_for(cores + 1)
