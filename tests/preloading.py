"""Programs that start as forks of a process with torch and the program in it, for tests of what a program does.

Tests of how it starts, what it imports or its terminal's job control use none of this.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from specchat.engine.protocol.environment import engine_environment

PRELOADED = "SPECCHAT_TESTS_PRELOADED"
"""The variable with the server's socket, for sitecustomize.py."""

FOLDER = Path(__file__).parent / "preloaded"


@pytest.fixture(scope="session")
def preloaded_server() -> Iterator[Path]:
    """The socket of a server that forks."""
    folder = Path(tempfile.mkdtemp(prefix="specchat-"))  # not pytest's: the name of a socket is short
    server = subprocess.Popen(
        [sys.executable, str(FOLDER / "server.py"), str(folder / "socket")],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=engine_environment(), start_new_session=True,
    )  # fmt: skip
    assert server.stdin is not None
    assert server.stdout is not None
    assert server.stdout.readline() == b"listening\n"
    yield folder / "socket"
    server.stdin.close()
    server.wait()
    server.stdout.close()
    shutil.rmtree(folder)


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


@pytest.fixture
def whole_app(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take `preloaded_app` back for a test that looks at the app's process."""
    monkeypatch.delenv("SPECCHAT_TESTS_PRELOADED_IN_TERMINAL", raising=False)
