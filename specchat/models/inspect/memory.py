"""How much memory a model takes, and how much there is: arithmetic that needs no torch."""

from __future__ import annotations

import os
from pathlib import Path

from specchat.compiled.processor import cpu_flags
from specchat.models.inspect.container_limits import memory_left

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

_BYTES_EACH = {"float32": 4.0, "bfloat16": 2.0, "int8": 1.0, "int4": 0.65}
_WORKING_BYTES = 200_000_000


def needed_bytes(parameters: int, precision: str, four_bit: int | None = None, others: str = "int8") -> int:
    """Weights in this precision plus a cache of 2048 tokens and working space, roughly.

    Args:
        four_bit: how many of the parameters the file holds in 4 bits, which are all that int4 keeps so. None: all
            of them.
        others: the precision of those that it does not.
    """
    if precision == "int4" and four_bit is not None:
        weights = _BYTES_EACH["int4"] * four_bit + _BYTES_EACH[others] * (parameters - four_bit)
    else:
        weights = _BYTES_EACH[precision] * parameters
    return int(weights * 1.1) + _WORKING_BYTES


def parameters_of(size: int, *, gguf: bool) -> int:
    """Parameters as a size suggests: GGUF files have 4 to 6 bits a weight, safetensors 16."""
    return size * 8 // 5 if gguf else size // 2


def free_bytes() -> int | None:
    """Main memory that could be taken now, or None where the system does not tell."""
    known = [left for left in (_free_in_machine(), memory_left(), _left_to_process()) if left is not None]
    return min(known, default=None)


def _left_to_process() -> int | None:
    """Address space that `ulimit -v` leaves to this process; None where there is no such limit."""
    if resource is None or (most := resource.getrlimit(resource.RLIMIT_AS)[0]) == resource.RLIM_INFINITY:
        return None
    try:
        taken = int(Path("/proc/self/statm").read_bytes().split()[0]) * resource.getpagesize()
    except OSError:
        return None
    return max(0, most - taken)


def _free_in_machine() -> int | None:
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        for line in meminfo.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


def has_graphics_card() -> bool:
    """Whether models would run in another memory than the processor's, as far as can be told without torch."""
    return any(Path(place).exists() for place in ("/proc/driver/nvidia/version", "/dev/nvidiactl", "/dev/nvidia0"))


def native_bfloat16() -> bool:
    """Whether the processor computes bfloat16 itself."""
    return any("avx512_bf16" in flag or "amx_bf16" in flag or flag == "bf16" for flag in cpu_flags())


def processor_precision(wanted: str, *, quantised: bool, own: bool) -> str:
    """The precision in which a processor runs a model: `auto` takes the fastest that keeps what the file holds.

    Args:
        quantised: whether the weights come in about 4 bits.
        own: whether our own decoder runs the model.
    """
    if wanted != "auto":
        return wanted
    if own and quantised:
        return "int4"
    return "bfloat16" if native_bfloat16() else "float32"
