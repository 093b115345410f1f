"""A program of a test that is preloaded behaves as one that starts alone: streams, exit codes, signals, its end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

pytestmark = pytest.mark.usefixtures("preloaded")

LOADED = "import sys; print('textual.app' in sys.modules, sys.argv[1:])"


def python(*words: str, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=60, check=False, **options)  # type: ignore[call-overload]


def test_what_names_the_program_is_a_fork_and_other_code_is_not():
    assert python("-c", f"{LOADED}  # specchat", "a", "b").stdout == "True ['a', 'b']\n"
    assert python("-c", LOADED).stdout == "False []\n"


def test_streams_folder_variables_and_exit_code_are_the_callers(tmp_path):
    code = "import os, sys; print(sys.stdin.read(), os.getcwd(), os.environ['X']); sys.exit('specchat')"
    ended = python("-c", code, input="caf\u00e9", cwd=tmp_path, env={**os.environ, "X": "y"})
    assert (ended.returncode, ended.stdout, ended.stderr) == (1, f"caf\u00e9 {tmp_path} y\n", "specchat\n")


WAITS = "import os, signal, time  # specchat\nprint(os.getpid(), flush=True)\ntime.sleep(60)"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_signal_ends_the_fork_and_is_how_it_ended(number):
    process = subprocess.Popen([sys.executable, "-c", WAITS], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline().strip().isdigit()
    process.send_signal(number)
    assert process.stdout.read() == b"", "the fork, which holds this pipe, goes on"
    assert process.wait(60) == -number
    process.stdout.close()
