"""Finds the fuzzers in this folder, and makes one attempt of one of them within bounds of time and memory."""

from __future__ import annotations

import contextlib
import importlib
import resource
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from specchat.errors import SpecchatError

FOLDER = Path(__file__).parent
PREFIX = "fuzz_"
DEFAULT_ATTEMPTS = 40
DEFAULT_CPU_S = 20.0
EXTRA_BYTES = 2 << 30
"""Address space that one attempt may add to what the process has."""


class TooLong(BaseException):
    """An attempt that used up its time; not an Exception, so that nothing under test can catch it by accident."""


@dataclass(frozen=True)
class Fuzzer:
    """One file `fuzz_NAME.py`.

    Args:
        attempt: makes an input from the seed, in an empty folder, and gives it to the program; raises on a finding.
        attempts: seeds 0 to attempts - 1 are the short budget that pytest runs.
        cpu_s: processor time that one attempt may take.
    """

    name: str
    attempt: Callable[[int, Path], None]
    attempts: int
    cpu_s: float


def fuzzers() -> dict[str, Fuzzer]:
    """Every fuzzer of this folder by name."""
    return {file.stem.removeprefix(PREFIX): _load(file.stem) for file in sorted(FOLDER.glob(f"{PREFIX}*.py"))}


def make_attempt(fuzzer: Fuzzer, seed: int) -> None:
    """One attempt in an empty folder; a SpecchatError is an answer, any other exception a finding."""
    folder = Path(tempfile.mkdtemp(prefix=f"fuzz-{fuzzer.name}-"))
    try:
        with _bounded_time(fuzzer.cpu_s), _bounded_memory(), contextlib.suppress(SpecchatError):
            fuzzer.attempt(seed, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _load(stem: str) -> Fuzzer:
    module = importlib.import_module(f"tests.fuzz.{stem}")
    return Fuzzer(
        stem.removeprefix(PREFIX),
        module.attempt,
        getattr(module, "ATTEMPTS", DEFAULT_ATTEMPTS),
        getattr(module, "CPU_S", DEFAULT_CPU_S),
    )


@contextlib.contextmanager
def _bounded_time(seconds: float) -> Iterator[None]:
    """Processor time, which other processes on the machine do not use up."""

    def stop(_signal: int, _frame: FrameType | None) -> None:
        raise TooLong(f"more than {seconds} s of processor time")

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


@contextlib.contextmanager
def _bounded_memory() -> Iterator[None]:
    """Lets a large allocation fail, where the system says how much the process has."""
    statm = Path("/proc/self/statm")
    if not statm.exists():
        yield
        return
    taken = int(statm.read_text().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (taken + EXTRA_BYTES, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
