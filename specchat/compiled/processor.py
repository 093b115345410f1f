"""What this machine's processor can do, and the compiler's option for it."""

from __future__ import annotations

import platform
from functools import lru_cache
from pathlib import Path


@lru_cache(maxsize=1)
def cpu_flags() -> frozenset[str]:
    """What the processor can do, as Linux tells; nothing elsewhere."""
    cpuinfo = Path("/proc/cpuinfo")
    if not cpuinfo.exists():
        return frozenset()
    lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
    return frozenset(flag for line in lines if line.startswith(("flags", "Features")) for flag in line.split())


def processor_option(processor: str = "native") -> str:
    """The compiler's option for this processor, or another one by name. For ARM it knows `native` as a CPU only."""
    return f"{'-mcpu' if platform.machine() == 'aarch64' else '-march'}={processor}"
