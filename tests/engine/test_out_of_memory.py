"""Engines without memory, or stuck for want of it, end and say so."""

from __future__ import annotations

import signal
import sys
import time

import pytest
from engine_driver import PATIENCE_S, SCRIPTED, Driver

from specchat.engine.protocol import events as ev
from specchat.engine.protocol.commands import Load
from specchat.engine.server.event_conversion import failure
from specchat.engine.server.memory import no_memory_left

pytestmark = pytest.mark.usefixtures("preloaded")

ENGINE = """
import ctypes, os, pathlib, resource
import specchat.engine.server.pair_loading as pairs
from specchat.engine.server import host
host._LAST_CALL_S = 0.2

def stuck(*_):
    os.write(2, b"stuck")
    ctypes.PyDLL(None).sleep(1000)  # keeps Python's lock, as an interpreter does that cannot raise MemoryError

def greedy(*_):
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (64 << 20),) * 2)
    bytearray(1 << 30)

pairs.load_scripted = {}
host.serve()
"""


def engine(tmp_path, load: str) -> Driver:
    return Driver(tmp_path / "log", [sys.executable, "-c", ENGINE.format(load)])


def test_an_engine_that_lets_no_other_thread_run_does_not_outlive_its_client(tmp_path):
    driver = engine(tmp_path, "stuck")
    driver.send(Load(SCRIPTED))
    end = time.monotonic() + PATIENCE_S
    while driver.engine.log.read_text() != "stuck" and time.monotonic() < end:
        time.sleep(0.05)
    process = driver.engine._process
    process.stdin.close()
    assert process.wait(PATIENCE_S) == -signal.SIGKILL


@pytest.mark.skipif(sys.platform != "linux", reason="bounded by what Linux says is in use")
def test_an_allocation_that_fails_ends_the_engine_with_a_line(tmp_path):
    driver = engine(tmp_path, "greedy")
    failed = driver.send(Load(SCRIPTED)).until(ev.Failed)
    died = driver.until(ev.Died)
    assert (failed.during, failed.kind, failed.exit_code) == ("load", "NoMemoryLeft", 1)
    assert failed.message == "the engine has no memory left, so it ends"
    assert (died.returncode, died.last_words.splitlines()[-1]) == (1, failed.message)


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        MemoryError("no memory for a pass"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:127] . DefaultCPUAllocator: can't allocate memory: you tried to"),
        RuntimeError("can't start new thread"),
        OSError(12, "Cannot allocate memory"),
    ],
    ids=repr,
)
def test_every_way_to_be_without_memory_is_known(error):
    ended = no_memory_left(error)
    assert ended is not None
    assert no_memory_left(ended) is ended
    assert str(error) in str(ended)


@pytest.mark.parametrize("error", [RuntimeError("shapes"), OSError(2, "none"), ValueError()], ids=repr)
def test_other_errors_are_not_taken_for_want_of_memory(error):
    assert no_memory_left(error) is None


def test_an_error_of_a_library_is_internal_whatever_attributes_it_has():
    class Foreign(Exception):
        exit_code = 7

    said = failure(Foreign("gone"), "load")
    assert (said.exit_code, said.message) == (1, "internal error: Foreign: gone")
