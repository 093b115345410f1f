"""A training that another program starts: its reports, how it is stopped, what a pause does to its clock."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
from tiny_models import add_tiny_pair

from specchat.cli import training_run as training_verdict
from specchat.cli.training_run import RunningClock, stoppable
from specchat.config import data_dir
from specchat.engine.protocol.training_report import Needed, Reached, Trained, decode_report
from specchat.settings import Settings


@pytest.fixture
def command(tmp_path):
    """A training of a tiny model as the app starts it."""
    prompts = add_tiny_pair(tmp_path)
    run = [sys.executable, "-c", "import sys; from specchat.cli import main; sys.exit(main())", "train", "tiny"]
    run += ["--prompts", str(prompts), "--tokens", "5200", "--no-verdict", "--threads", "1"]
    return [*run, "--output", "jsonl", "--stop-at-eof"]


@pytest.mark.slow
def test_a_paused_training_whose_starter_is_gone_ends_with_the_best_kept_and_goes_on_later(command):
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    reports = []
    for line in process.stdout:
        reports.append(decode_report(line))
        if getattr(reports[-1], "stage", "") == "learning" and reports[-1].done > 0.05:
            break
    process.send_signal(signal.SIGSTOP)
    time.sleep(0.2)
    process.stdin.close()
    process.send_signal(signal.SIGCONT)
    reports += [decode_report(line) for line in process.stdout]
    said = process.stderr.read().decode()
    assert process.wait() == 130, said
    assert "To go on: specchat train tiny" in said
    assert "Traceback" not in said
    assert isinstance(reports[-1], Trained)
    assert not reports[-1].complete
    assert (data_dir() / "drafters" / "tiny-hydra" / "weights.safetensors").exists()
    stages = [report.stage for report in reports if isinstance(report, Reached)]
    assert list(dict.fromkeys(stages)) == ["loading", "replies", "states", "learning"]
    assert [report.memory_bytes > 0 for report in reports if isinstance(report, Needed)] == [True]
    again = subprocess.run([*command, "--resume"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, timeout=60)
    assert again.returncode == 130, "nothing holds its standard input"
    with subprocess.Popen([*command, "--resume"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        last = [decode_report(line) for line in process.stdout][-1]
    assert last.complete
    assert last.tokens_seen > reports[-1].tokens_seen


def test_the_clock_stands_while_the_process_is_paused(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    clock = RunningClock()
    begun = clock()
    with stoppable(clock, at_eof=False):
        now[0] += 3.0
        assert clock() == begun + 3.0
        now[0] += 600.0
        os.kill(os.getpid(), signal.SIGCONT)
        assert clock.pauses == 1
        assert clock() == begun + 3.0
        now[0] += 1.0
        assert clock() == begun + 4.0


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_a_signal_to_end_stops_once_and_what_is_saved_then_is_not_cut_off(name):
    number = getattr(signal, name)
    before = signal.getsignal(number)

    def training():
        with stoppable(RunningClock(), at_eof=False):
            try:
                os.kill(os.getpid(), number)
                time.sleep(1)
            finally:
                os.kill(os.getpid(), number)

    with pytest.raises(KeyboardInterrupt):
        training()
    assert signal.getsignal(number) is before


@pytest.mark.parametrize(("paused", "judged"), [(1, True), (3, False)])
def test_a_measurement_that_was_paused_is_made_again(monkeypatch, paused, judged):
    clock, runs = RunningClock(), []

    class Bench:
        def __init__(self, plan, progress):
            pass

        def run(self):
            runs.append(len(runs))
            if len(runs) <= paused:
                clock.goes_on()

    monkeypatch.setattr("specchat.bench.runner.Bench", Bench)
    monkeypatch.setattr(training_verdict, "judge", lambda report, ways: ways)
    trained = type("Trained", (), {"method": "hydra", "name": "mine"})
    found = training_verdict.measure(Settings(), trained, lambda stage: None, clock)
    assert (found is not None) == judged
    assert len(runs) == min(paused + 1, 3)


_STARTER = """
import signal, subprocess, sys, time
pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
child = subprocess.Popen([sys.executable, "-c", sys.argv[1]], process_group=0, **pipes)
child.stdout.readline()  # it can be stopped from now on
child.send_signal(signal.SIGSTOP)
print(child.pid, flush=True)
time.sleep(60)
"""

_TRAINING = """
import sys, time
from pathlib import Path
from specchat.cli.training_run import RunningClock, stoppable
with stoppable(RunningClock(), at_eof=True):
    try:
        print("ready", flush=True)
        time.sleep(60)
    except KeyboardInterrupt:
        Path({file!r}).write_text("ended in order")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the system sends SIGHUP, which is tried above")
def test_a_paused_training_ends_in_order_when_the_program_that_started_it_is_killed(tmp_path):
    file = tmp_path / "said"
    training = _TRAINING.format(file=str(file))
    starter = subprocess.Popen([sys.executable, "-c", _STARTER, training], stdout=subprocess.PIPE)
    child = int(starter.stdout.readline())
    starter.kill()
    starter.wait()
    for _ in range(1200):
        if file.exists() and file.read_text():
            break
        time.sleep(0.05)
    else:
        os.kill(child, signal.SIGKILL)
    assert file.read_text() == "ended in order"
