"""The app wants a terminal, and does not outlive it."""

import os
import pty
import signal
import subprocess
import sys
import time

import pytest

COMMAND = [sys.executable, "-m", "specchat", "--pair", "scripted"]


def environment(tmp_path):
    return {**os.environ, "SPECCHAT_HOME": str(tmp_path), "TERM": "xterm-256color"}


@pytest.mark.parametrize("command", [COMMAND, [sys.executable, "-m", "specchat", "replay", "assets/demo.jsonl"]])
def test_without_a_terminal_it_says_what_to_run_instead(preloaded, tmp_path, command):
    done = subprocess.run(
        command, env=environment(tmp_path), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert "specchat run" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_terminal_that_goes_away_takes_the_app_along(tmp_path):
    ours, theirs = pty.openpty()
    app = subprocess.Popen(
        COMMAND, env=environment(tmp_path), stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
    )
    os.close(theirs)
    painted, deadline = b"", time.monotonic() + 60
    while b"\x1b[?1049h" not in painted and time.monotonic() < deadline:
        painted += os.read(ours, 4096)
    os.close(ours)
    app.send_signal(signal.SIGHUP)
    assert app.wait(timeout=60) == 129
