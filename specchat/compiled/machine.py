"""This machine: its processor and the compiler's option for it, cores and memory that may be taken.

As Linux and its control groups (version 2 and 1) tell, or macOS by the names that `sysctl` lists. Needs no torch.
"""

from __future__ import annotations

import ctypes
import math
import os
import platform
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

_DEVELOPER_TOOLS = (
    "/var/db/xcode_select_link",
    "/Applications/Xcode.app/Contents/Developer",
    "/Library/Developer/CommandLineTools",
)


def is_macos() -> bool:
    return sys.platform == "darwin"


def system_value(name: str) -> bytes | None:
    """The system's value of this name; None where it has none."""
    try:
        ask = ctypes.CDLL(None).sysctlbyname
    except (AttributeError, OSError):  # not macOS
        return None
    pointer, size = ctypes.c_void_p, ctypes.c_size_t(0)
    ask.argtypes = [ctypes.c_char_p, pointer, pointer, pointer, ctypes.c_size_t]
    if ask(name.encode(), None, ctypes.byref(size), None, 0):
        return None
    room = ctypes.create_string_buffer(max(size.value, 1))
    if ask(name.encode(), room, ctypes.byref(size), None, 0):
        return None
    return room.raw[: size.value]


def system_number(name: str) -> int:
    """A number that the system says under this name, 0 where it says none."""
    return int.from_bytes(system_value(name) or b"", sys.byteorder)


def system_text(name: str) -> str:
    """Text that the system says under this name, empty where it says none."""
    return (system_value(name) or b"").rstrip(b"\0").decode(errors="replace")


def has_developer_tools() -> bool:
    """Whether the compilers in /usr/bin work. Without the tools they fail, and ask in a window for the tools."""
    return any(Path(place).exists() for place in _DEVELOPER_TOOLS)


_APPLE_NAMES = {"asimddp": "hw.optional.arm.FEAT_DotProd", "i8mm": "hw.optional.arm.FEAT_I8MM"}
"""Linux's name of what the kernels use → macOS's. PyTorch for macOS knows Apple's own processors alone."""

_ARM_OPTIONS = {"asimddp": "+dotprod", "i8mm": "+i8mm"}


def machine() -> str:
    """The kind of processor, by the name that Linux has for it."""
    named = platform.machine()
    return {"arm64": "aarch64"}.get(named, named)


@lru_cache(maxsize=1)
def cpu_flags() -> frozenset[str]:
    """The processor's features, by the names that Linux has for them; none where the system does not tell."""
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


_GROUPS = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/cgroup")


def cores_allowed() -> int | None:
    """As many cores as processor time is allowed for, rounded up; None where there is no limit."""
    shares = []
    for group in _groups("cpu"):
        shares.append(_numbers(group / "cpu.max"))
        shares.append(_numbers(group / "cpu.cfs_quota_us") + _numbers(group / "cpu.cfs_period_us"))
    found = [share for share in shares if len(share) == 2 and min(share) > 0]
    return min((math.ceil(quota / period) for quota, period in found), default=None)


def memory_left() -> int | None:
    """Bytes that may still be taken, what is only kept of files counted as free; None where there is no limit."""
    found = []
    for group in _groups("memory"):
        for most, taken, kept in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            if len(numbers := _numbers(group / most) + _numbers(group / taken)) == 2:
                found.append(max(0, numbers[0] - numbers[1] + _named(group / "memory.stat", kept)))
    return min(found, default=None)


def _groups(controller: str) -> Iterator[Path]:
    """The folders of the groups that this process is in, the innermost first; each limits those within it.

    In a container the names may be those of the machine around it; then only the outermost folder is there.
    """
    for line in _lines(_OWN):
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and controller not in controllers.split(","):
            continue
        root = _GROUPS / controller if controllers else _GROUPS
        own = root / path.strip("/")
        for folder in (own, *own.parents):
            if not folder.is_relative_to(root):
                break
            yield folder


def _lines(file: Path) -> list[str]:
    with suppress(OSError):
        return file.read_text(encoding="utf-8", errors="replace").splitlines()
    return []


def _numbers(file: Path) -> list[int]:
    """The numbers of a file's first line; none where one of its words is not a number, such as `max`."""
    words = _lines(file)[:1]
    with suppress(ValueError):
        return [int(word) for word in words[0].split()] if words else []
    return []


def _named(file: Path, name: str) -> int:
    for line in _lines(file):
        with suppress(ValueError):
            word, number = line.split()
            if word == name:
                return int(number)
    return 0


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
    return memory_bytes()


def memory_bytes() -> int | None:
    """Main memory of the machine, or None where the system does not tell."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


def process_bytes() -> int:
    """Resident memory of this process, its peak where the system tells no more, 0 where it tells nothing."""
    try:
        return int(Path("/proc/self/statm").read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return peak_process_bytes()


def peak_process_bytes() -> int:
    """The most resident memory that this process had, since `reset_peak` where the system lets us; 0 if unknown."""
    for line in _lines(Path("/proc/self/status")):
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    if resource is None:
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if is_macos() else peak * 1024


def reset_peak() -> bool:
    """Begin to count the peak of resident memory anew; whether the system lets us."""
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
    except OSError:
        return False
    return True


def usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cpu_name() -> str:
    for line in _lines(Path("/proc/cpuinfo")):
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return system_text("machdep.cpu.brand_string") or platform.processor() or platform.machine()


def has_graphics_card() -> bool:
    """Whether models would run in another memory than the processor's, as far as can be told without torch."""
    return any(Path(place).exists() for place in ("/proc/driver/nvidia/version", "/dev/nvidiactl", "/dev/nvidia0"))


def native_bfloat16() -> bool:
    return any("avx512_bf16" in flag or "amx_bf16" in flag or flag == "bf16" for flag in cpu_flags())
