"""The engine's memory: how much its models take, and giving back what is no longer used."""

from __future__ import annotations

import errno
import gc
from collections.abc import Callable

import torch

from specchat.compiled.machine import peak_process_bytes, process_bytes, reset_peak
from specchat.errors import NoMemoryLeft, cut


def set_aside() -> None:
    """Take what there is now out of the search for garbage: looking through it between two rounds takes 0.1 s."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()


def free_memory() -> None:
    """Give back the memory of models that nothing refers to."""
    set_aside()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()  # else what was freed still counts as taken


def memory_bytes(device: torch.device) -> int:
    """What the models on this device take: torch's tensors on CUDA, elsewhere the whole process."""
    if device.type == "cuda":
        return int(torch.cuda.memory_allocated(device))
    return process_bytes()


def no_memory_left(error: Exception) -> NoMemoryLeft | None:
    """The line about an allocation on the host that failed, or a thread that could not be started; None: it is neither.

    torch says both with a RuntimeError. What CUDA could not allocate is left to whoever asked for it.
    """
    if isinstance(error, NoMemoryLeft):
        return error
    said = cut(str(error))
    by_torch = isinstance(error, RuntimeError) and ("can't allocate memory" in said or "can't start new thread" in said)
    by_system = isinstance(error, OSError) and error.errno == errno.ENOMEM
    if not (isinstance(error, MemoryError) or by_torch or by_system):
        return None
    return NoMemoryLeft(f"the engine has no memory left, so it ends{f': {said}' if said else ''}")


def watch_peak(device: torch.device) -> Callable[[], int]:
    """Measure the most that is held from now on; what is returned says how much that was so far."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return lambda: int(torch.cuda.max_memory_allocated(device))
    return peak_process_bytes if reset_peak() else process_bytes
