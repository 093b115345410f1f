"""Programs that start as forks of a process with torch and the program in it, for tests of what a program does.

Tests of how it starts, what it imports or its terminal's job control use none of this.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from xdist.workermanage import WorkerController

from specchat.engine.protocol.environment import engine_environment

PRELOADED = "SPECCHAT_TESTS_PRELOADED"
"""The variable with the server's socket, for sitecustomize.py."""

FOLDER = Path(__file__).parent / "preloaded"

SHARED = pytest.StashKey[Path]()
"""The socket of the server that all workers use."""


@contextmanager
def started() -> Iterator[Path]:
    """A server that forks: its socket, which is there a second or two later."""
    folder = Path(tempfile.mkdtemp(prefix="specchat-"))  # not pytest's: the name of a socket is short
    server = subprocess.Popen(
        [sys.executable, str(FOLDER / "server.py"), str(folder / "socket")],
        stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, env=engine_environment(), start_new_session=True,
    )  # fmt: skip
    assert server.stdin is not None
    try:
        yield folder / "socket"
    finally:
        server.stdin.close()
        server.wait()
        shutil.rmtree(folder)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: WorkerController) -> None:
    """Start one server for all workers."""
    if SHARED not in node.config.stash:
        stack = ExitStack()
        node.config.add_cleanup(stack.close)
        node.config.stash[SHARED] = stack.enter_context(started())
    node.workerinput["preloaded"] = str(node.config.stash[SHARED])


@pytest.fixture(scope="session")
def preloaded_server(pytestconfig: pytest.Config) -> Iterator[Path]:
    """The socket of a server that forks."""
    with ExitStack() as stack:
        shared = getattr(pytestconfig, "workerinput", {}).get("preloaded")
        address = Path(shared) if shared else stack.enter_context(started())
        end = time.monotonic() + 60
        while True:
            try:
                with socket.socket(socket.AF_UNIX) as line:
                    line.connect(str(address))
                break
            except OSError:
                assert time.monotonic() < end, "the server does not start"
                time.sleep(0.05)
        yield address


def use_preloaded(server: Path, patch: pytest.MonkeyPatch) -> None:
    """Have `python -m specchat …`, and what it starts itself so, begin as a fork of the server."""
    patch.setenv(PRELOADED, str(server))
    patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(FOLDER), os.environ.get("PYTHONPATH")))))


@pytest.fixture
def preloaded(preloaded_server: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_preloaded(preloaded_server, monkeypatch)


@pytest.fixture(scope="module")
def preloaded_module(preloaded_server: Path) -> Iterator[None]:
    """The same for what a module starts once."""
    with pytest.MonkeyPatch.context() as patch:
        use_preloaded(preloaded_server, patch)
        yield


@pytest.fixture
def preloaded_app(preloaded: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same of what owns a terminal. The process that is seen from outside only waits for the program then."""
    monkeypatch.setenv("SPECCHAT_TESTS_PRELOADED_IN_TERMINAL", "1")


def with_code_before(folder: Path, codes: Mapping[str, str]) -> str:
    """A PYTHONPATH with which forks run some code before their program, except before an engine.

    Args:
        folder: an empty one, on that path.
        codes: the code by the program's module; it names specchat.
    """
    run = "\nimport runpy\nrunpy.run_module({!r}, run_name='__main__', alter_sys=True)\n"
    texts = {module: code + run.format(module) for module, code in codes.items()}
    (folder / "sitecustomize.py").write_text(
        f"""
import runpy, sys
code = {texts!r}.get(sys.orig_argv[2] if sys.orig_argv[1] == "-m" else "")
if code and sys.orig_argv[3:4] != ["engine"]:
    sys.orig_argv[1:3] = ["-c", code]
runpy.run_path({str(FOLDER / "sitecustomize.py")!r})
""",
        encoding="utf-8",
    )
    return os.pathsep.join([str(folder), os.getcwd()])
