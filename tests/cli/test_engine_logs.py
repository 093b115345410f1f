"""Logs of engines: one for each process, and none of those that are gone."""

from __future__ import annotations

import os
import subprocess
import sys

from specchat.engine.client.start_engine import engine_log, start_engine


def test_logs_of_processes_that_are_gone_are_swept_and_others_stay():
    folder = engine_log().parent
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    gone = [folder / f"engine-{number}.log" for number in (ended.pid, 10**30)]
    living = [folder / f"engine-{os.getppid()}.log", folder / "engine-notes.log", folder / "other.log"]
    for file in (*gone, *living):
        file.write_text("what happened")
    start_engine(f"{sys.executable} -c ''", {}).close()
    assert [file for file in gone if file.exists()] == []
    assert [file for file in living if not file.exists()] == []
    assert engine_log().exists()
