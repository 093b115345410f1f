"""How pytest spreads tests over the cores: a file runs on one worker, the app's beside others; terminals come last."""

from __future__ import annotations

import compileall
import os
import re
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler.loadfile import LoadFileScheduling
from xdist.workermanage import WorkerController

TERMINALS = 3
"""How many terminals are driven at once: each has an app and an engine, and waits for both half of its time."""

APP = "tests/tui/"
"""Tests here wait for the app for half of their time, so that others are run beside them."""

_MARKED = re.compile(r"^(@|pytestmark = (.*|\[\s*))pytest\.mark\.e2e\b", re.M)


def wants_workers(config: pytest.Config) -> bool:
    """Whether to use all cores: nothing says otherwise, and more is asked for than single files or tests."""
    chosen = config.option
    if chosen.numprocesses is not None or chosen.dist != "no" or chosen.tx or hasattr(config, "workerinput"):
        return False
    if "PYTEST_XDIST_WORKER" in os.environ:  # a test that runs pytest
        return False
    if chosen.usepdb or chosen.trace or chosen.capture == "no" or chosen.collectonly or chosen.keyword:
        return False
    return all(Path(argument).is_dir() for argument in config.args) and chosen.markexpr != "e2e"


def workers() -> int:
    """Two more than there are cores: half of them run the app's tests, which wait for half of their time."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return cores + 2


@cache
def drives_terminal(file: Path) -> bool:
    """Whether a file holds a test marked e2e, by its text: only workers collect tests."""
    return _MARKED.search(file.read_text(encoding="utf-8")) is not None


def compile_share(config: pytest.Config, package: Iterable[Path], tests: Iterable[Path]) -> None:
    """Compile every n-th file of the package and of the tests, where a run has n workers.

    All workers import all files, in the same order. In a fresh clone each would compile each of them, which takes 25 s.
    """
    if not hasattr(config, "workerinput"):
        return
    worker = int(config.workerinput["workerid"].removeprefix("gw"))
    workers = config.workerinput["workercount"]
    for file in sorted(map(Path.resolve, package))[worker::workers]:  # code tells its file from every folder
        compileall.compile_file(file, quiet=2)
    with suppress(ImportError):  # private parts of pytest
        from _pytest.assertion.rewrite import (
            PYC_TAIL,
            _read_pyc,
            _rewrite_test,
            _write_pyc,
            assertstate_key,
            get_cache_dir,
        )

        for file in sorted(map(Path.resolve, tests))[worker::workers]:
            compiled = get_cache_dir(file) / (file.stem + PYC_TAIL)
            if _read_pyc(file, compiled) is None:
                with suppress(OSError, SyntaxError):  # told when it is imported
                    compiled.parent.mkdir(exist_ok=True)
                    status, code = _rewrite_test(file, config)
                    _write_pyc(config.stash[assertstate_key], code, status, compiled)


class TerminalTestsLast(LoadFileScheduling):
    """Files that drive a terminal wait until all others are given out, then run on the last workers that are left."""

    def _assign_work_unit(self, node: WorkerController) -> None:
        """Give a worker the next file. A worker holds its last test back until it gets another, or is shut down."""
        others = [file for file in self.workqueue if not drives_terminal(self.config.rootpath / file)]
        if others:
            app_is_wanted = self._running_the_app(node) < len(self.nodes) // 2
            other = next((file for file in others if file.startswith(APP) is app_is_wanted), others[0])
            self.workqueue.move_to_end(other, last=False)
        elif not self.workqueue or sum(not one.shutting_down for one in self.nodes) > TERMINALS:
            node.shutdown()
            return
        elif len(self.nodes) > TERMINALS:
            return  # `remove_node` asks again when the others have left
        try:
            super()._assign_work_unit(node)
        except OSError:  # it crashed and nobody has been told yet: `remove_node` takes back what it was just given
            return
        if self._pending_of(self.assigned_work[node]) < 2:
            self._reschedule(node)

    def _running_the_app(self, asking: WorkerController) -> int:
        """How many other workers were given a file of the app's tests last."""
        newest = [next(reversed(files), "") for node, files in self.assigned_work.items() if node is not asking]
        return sum(file.startswith(APP) for file in newest)

    def remove_node(self, node: WorkerController) -> str | None:
        """Take back what a worker leaves undone. The test it crashed in has failed and is not tried again."""
        left = {file: tests for file, tests in self.assigned_work[node].items() if not all(tests.values())}
        file, crashed = next(((f, t) for f, tests in left.items() for t, done in tests.items() if not done), ("", None))
        if crashed is not None:
            left[file][crashed] = True
        self.assigned_work[node] = {file: tests for file, tests in left.items() if not all(tests.values())}
        super().remove_node(node)
        if self.collection is not None:
            for other in self.nodes:
                self._reschedule(other)
        return crashed


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> TerminalTestsLast | None:
    """With `--dist loadfile`, ours or the caller's, tests that drive a terminal run last, three at once."""
    return TerminalTestsLast(config, log) if config.option.dist == "loadfile" else None
