"""What this machine's processor can do, and the compiler's option for it."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from specchat.compiled.apple_system import is_macos, system_number

_APPLE_NAMES = {"asimddp": "hw.optional.arm.FEAT_DotProd", "i8mm": "hw.optional.arm.FEAT_I8MM"}
"""Linux's name of what the kernels use → macOS's. PyTorch for macOS knows Apple's own processors alone."""

_ARM_OPTIONS = {"asimddp": "+dotprod", "i8mm": "+i8mm"}


def machine() -> str:
    """The kind of processor, by the name that Linux has for it."""
    named = platform.machine()
    return {"arm64": "aarch64"}.get(named, named)


@lru_cache(maxsize=1)
def cpu_flags() -> frozenset[str]:
    """What the processor can do, by the names that Linux has for it; nothing where the system does not tell."""
    if is_macos():
        return frozenset(flag for flag, name in _APPLE_NAMES.items() if system_number(name))
    cpuinfo = Path("/proc/cpuinfo")
    if not cpuinfo.exists():
        return frozenset()
    lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
    return frozenset(flag for line in lines if line.startswith(("flags", "Features")) for flag in line.split())


def processor_option(compiler: Sequence[str], processor: str = "native") -> str:
    """The compiler's option for this processor, or for another one by name.

    For ARM compilers know `native` as a CPU only. Apple's, where they are older than the processor, take it for one
    that lacks what it has; so they are told what it can do. Zig's knows processors by name alone.
    """
    if machine() != "aarch64":
        return f"-march={processor}"
    if processor == "native" and is_macos() and "ziglang" not in compiler:
        return "-march=armv8.2-a+fp16" + "".join(told for flag, told in _ARM_OPTIONS.items() if flag in cpu_flags())
    return f"-mcpu={processor}"
