"""Every test is offline and away from the user's own directories, and leaves a core to others."""

from __future__ import annotations

import os

os.environ["OMP_WAIT_POLICY"] = "passive"  # before torch is imported: it reads them once
os.environ["OMP_NUM_THREADS"] = "1" if "PYTEST_XDIST_WORKER" in os.environ else "2"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # hundreds of processes are started: compile the package once

import gc
import itertools
import platform
import shutil
import socket
import sys
from collections.abc import Generator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from compile_once import share_compiled
from distribution import compile_share, pytest_xdist_make_scheduler, wants_workers, workers  # noqa: F401
from hypothesis import settings as hypothesis_settings
from preloading import (  # noqa: F401
    preloaded,
    preloaded_app,
    preloaded_module,
    preloaded_server,
    pytest_configure_node,
)

from specchat.compiled.build import NativeUnavailable, find_compiler
from specchat.compiled.machine import cpu_flags

sys.dont_write_bytecode = False  # and this one rewrites the assertions of 440 files, which takes 10 s

hypothesis_settings.register_profile("specchat", deadline=None, derandomize=True)
hypothesis_settings.load_profile("specchat")

freeze = gc.freeze
"""The real one: later `gc.freeze` does nothing."""

LONGEST_ID = 100
"""Characters of a parameter that a test's name repeats."""


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Use all cores, unless asked otherwise; pytest-xdist reads these options after this."""
    if config.pluginmanager.hasplugin("xdist") and wants_workers(config):
        config.option.numprocesses, config.option.dist = workers(), "loadfile"


def pytest_configure(config: pytest.Config) -> None:
    """Compile Python files once for all workers, and C sources for what tests start and for later runs too."""
    package, tests = (config.rootpath / name for name in ("specchat", "tests"))
    compile_share(config, package.rglob("*.py"), tests.rglob("test_*.py"))
    cache = None
    if config.pluginmanager.hasplugin("cacheprovider"):
        with suppress(OSError):  # this folder cannot be written
            cache = config.cache.mkdir("compiled")
    with suppress(NativeUnavailable):
        folder = share_compiled(find_compiler(), cache, f"{platform.platform()} {sorted(cpu_flags())}")
        if folder is not None and cache is None:
            config.add_cleanup(lambda: shutil.rmtree(folder))


def pytest_make_parametrize_id(val: object) -> str | None:
    """A short name for a long text. (Workers and reports repeat a test's name: one of 16 MB cost 4 s and 150 MB.)"""
    return f"{val[:LONGEST_ID]!r}…" if isinstance(val, str | bytes) and len(val) > LONGEST_ID else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[Any]:
    """Collect no garbage while tests are collected (a third of the time), and later none of what stays to the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(10_000, 20, 10)  # with Python's own a tenth of the time goes into collections
        gc.enable()
        # The engine and the app freeze their own process's objects and release them: here all tests, 0.5 s each time.
        gc.freeze = gc.unfreeze = lambda: None


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, Any, Any]:
    """After a file, leave what it made and holds out of later collections: an engine collects at each change of its
    models, and after one file of the app's each collection took 0.14 s instead of 4 ms."""
    done = yield
    if nextitem is None or nextitem.path != item.path:
        gc.collect()
        freeze()
    return done


def pytest_runtest_teardown() -> None:
    """Take back the threads that an engine in this process computed with: a worker's tests have one."""
    if "PYTEST_XDIST_WORKER" in os.environ and (torch := sys.modules.get("torch")) and torch.get_num_threads() > 1:
        torch.set_num_threads(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out what takes long, unless it is asked for."""
    if os.environ.get("SPECCHAT_SLOW"):
        return
    for item in items:
        if item.get_closest_marker("slow") is not None:
            item.add_marker(pytest.mark.skip(reason="slow; SPECCHAT_SLOW=1 runs it"))


@pytest.fixture(scope="session")
def homes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Names of folders that are not there yet. (`mktemp` looks at all there are: 7 s for 4,000 tests.)"""
    folder = tmp_path_factory.mktemp("homes")
    return (folder / str(number) for number in itertools.count())


@pytest.fixture(autouse=True)
def away_from_home(request: pytest.FixtureRequest, homes: Iterator[Path], monkeypatch) -> None:
    """A home of the test's own, and no connection but to this machine."""
    if request.node.get_closest_marker("real") is not None:
        return
    home = next(homes)
    home.mkdir(mode=0o700)
    monkeypatch.setenv("SPECCHAT_HOME", str(home))
    connect = socket.socket.connect

    def connect_here(self: socket.socket, address: object) -> None:
        host = address[0] if isinstance(address, tuple) else "localhost"
        assert host in ("127.0.0.1", "::1", "localhost"), f"a test wants to connect to {address!r}"
        connect(self, address)  # type: ignore[arg-type]

    monkeypatch.setattr(socket.socket, "connect", connect_here)
