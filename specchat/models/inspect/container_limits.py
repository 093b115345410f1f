"""What a container lets its processes take of the machine: Linux's control groups, version 2 and version 1."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

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
