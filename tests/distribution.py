"""How pytest spreads tests over the cores: a file runs on one worker, files of different kinds beside each other."""

from __future__ import annotations

import compileall
import os
import re
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from enum import IntEnum
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler.loadfile import LoadFileScheduling
from xdist.workermanage import WorkerController


class Kind(IntEnum):
    """What a file's tests are about. A worker takes the last kind of which too few files are run."""

    OTHER = 0
    APP = 1
    TERMINAL = 2


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
    """Three more than there are cores: tests of the app and of terminals wait for half of their time."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return cores + 3


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


class FilesByKind(LoadFileScheduling):
    """Runs tests of the app and of terminals, which wait for half of their time, beside those that compute."""

    def _assign_work_unit(self, node: WorkerController) -> None:
        """Give a worker the next file. A worker holds its last test back until it gets another, or is shut down."""
        if not self.workqueue:
            node.shutdown()
            return
        newest = [next(reversed(files)) for other, files in self.assigned_work.items() if files and other is not node]
        running = Counter(map(self._kind, newest))
        waiting = {self._kind(file): file for file in reversed(self.workqueue)}  # the first of each kind
        most = {
            Kind.TERMINAL: max(1, len(self.nodes) // 4),
            Kind.APP: len(self.nodes) // 2,
            Kind.OTHER: len(self.nodes),
        }
        wanted = (kind for kind in reversed(Kind) if kind in waiting and running[kind] < most[kind])
        self.workqueue.move_to_end(waiting[next(wanted, min(waiting))], last=False)
        try:
            super()._assign_work_unit(node)
        except OSError:  # it crashed and nobody has been told yet: `remove_node` takes back what it was just given
            return
        if self._pending_of(self.assigned_work[node]) < 2:
            self._reschedule(node)

    def _reschedule(self, node: WorkerController) -> None:
        """Give a worker more files. One that replaces another gets its first when it has collected."""
        if node in self.registered_collections:
            super()._reschedule(node)

    def _kind(self, file: str) -> Kind:
        if drives_terminal(self.config.rootpath / file):
            return Kind.TERMINAL
        return Kind.APP if file.startswith("tests/tui/") else Kind.OTHER

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
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> FilesByKind | None:
    """Take part with `--dist loadfile`, ours or the caller's."""
    return FilesByKind(config, log) if config.option.dist == "loadfile" else None
