"""What macOS says of its machine, by the names that `sysctl` lists."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

_DEVELOPER_TOOLS = (
    "/var/db/xcode_select_link",
    "/Applications/Xcode.app/Contents/Developer",
    "/Library/Developer/CommandLineTools",
)


def is_macos() -> bool:
    """Whether this is macOS."""
    return sys.platform == "darwin"


def system_value(name: str) -> bytes | None:
    """What the system says under this name, or None where it says nothing."""
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
