"""Runs what came with a model, and the libraries that read its files: errors as one line, memory and time bounded.

What transformers, tokenizers and safetensors raise for a damaged file is of any kind, a panic of compiled code
included. Nothing else of specchat catches so much: our own readers know what they raise. A chat template is a program,
and a tokenizer's patterns and replacements are nearly one. Both can ask for any amount of memory, or for hours, in one
operation of compiled code that no exception ends. So the operating system bounds them.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from specchat.errors import DamagedModel, ModelError, SpecchatError

_LONGEST = 300


@contextmanager
def one_line(what: str) -> Iterator[None]:
    """Whatever a library raises inside becomes `what: reason`. Cancelling and our own errors pass.

    Raises:
        ModelError: in place of what was raised.
    """
    try:
        yield
    except SpecchatError:
        raise
    except Exception as error:
        raise library_error(what, error) from error
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # of compiled Rust; its class cannot be imported
            raise
        raise library_error(what, error) from None


def library_error(what: str, error: BaseException) -> ModelError:
    """The error `what: reason`: a damaged model, unless memory, the system or the installation is to blame."""
    of_system = isinstance(error, OSError) and error.errno is not None
    kind = ModelError if of_system or isinstance(error, MemoryError | ImportError) else DamagedModel
    return kind(f"{what}: {first_line(error)}")


def first_line(error: BaseException) -> str:
    """The first line of what an error says, with the next where it ends in a colon; its kind where it says nothing."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    line = " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]
    return line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…"


try:
    import resource
except ImportError:  # Windows, which has none of these bounds
    resource = None  # type: ignore[assignment]

MOST_CPU_S = 60.0
"""Processor time of one call. Loading the largest tokenizers takes some seconds."""

MOST_BYTES = 4 << 30
"""Memory that one call may add. Loading the largest tokenizers takes less than 1 GB."""

ENDED_BY = getattr(signal, "SIGPROF", None)
"""The signal that ends a process whose call has used up its time."""

MAPPED_FILE_LOST = getattr(signal, "SIGBUS", None)
"""The signal that ends a process which reads a page of a mapped file that the system can no longer give it."""

_STATM = Path("/proc/self/statm")
_DATA_FIELD = 5

_one_at_a_time = threading.RLock()
"""The bounds are the process's own."""


@contextmanager
def bounded(cpu_s: float = MOST_CPU_S, more_bytes: int = MOST_BYTES) -> Iterator[None]:
    """Let what runs inside take so much processor time and add so much memory to the process.

    Python code that asks for more memory gets a MemoryError. Compiled code that does ends the process with a line, and
    so does time, by the signal ENDED_BY: nothing else stops an operation that keeps Python's lock. Memory is bounded on
    Linux alone, time not on Windows.

    Raises:
        MemoryError: says how much could be added.
    """
    if resource is None:
        yield
        return
    with _one_at_a_time:
        limits = resource.getrlimit(resource.RLIMIT_DATA)
        timer = signal.getitimer(signal.ITIMER_PROF)
        try:
            _limit_memory(more_bytes, *limits)
            signal.setitimer(signal.ITIMER_PROF, cpu_s)
            yield
        except MemoryError:
            raise MemoryError(f"it takes more than {more_bytes / 2**30:g} GiB of memory") from None
        finally:
            try:
                signal.setitimer(signal.ITIMER_PROF, *timer)
            finally:
                resource.setrlimit(resource.RLIMIT_DATA, limits)


def _limit_memory(more_bytes: int, soft: int, hard: int) -> None:
    """Lower the soft limit to what the process has and so much more, where the system tells what it has."""
    try:
        taken = int(_STATM.read_bytes().split()[_DATA_FIELD]) * resource.getpagesize()
    except OSError:
        return
    wanted = taken + more_bytes
    if soft == resource.RLIM_INFINITY or wanted < soft:
        resource.setrlimit(resource.RLIMIT_DATA, (wanted, hard))
