"""Copying with a program of the desktop, in addition to the terminal (OSC 52)."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping

OSC_52_MOST = 74_994
"""Bytes that every terminal accepts; many ignore longer texts."""

_PATIENCE_S = 2.0


def local_tool(
    environment: Mapping[str, str] = os.environ,
    which: Callable[[str], str | None] = shutil.which,
    platform: str = sys.platform,
) -> list[str] | None:
    """The command that fills this desktop's clipboard from its standard input; None where there is none."""
    commands: list[list[str]] = []
    if environment.get("WAYLAND_DISPLAY"):
        commands.append(["wl-copy"])
    if environment.get("DISPLAY"):
        commands += [["xclip", "-selection", "clipboard"], ["xsel", "--clipboard", "--input"]]
    if platform == "darwin":
        commands.append(["pbcopy"])
    if platform == "win32" or environment.get("WSL_DISTRO_NAME"):
        commands.append(["clip.exe"])
    return next((command for command in commands if which(command[0])), None)


def hand_over(text: str, command: list[str]) -> str:
    """Copy the text with the tool; returns why it failed, or an empty text."""
    data = text.encode("utf-16-le" if command[0] == "clip.exe" else "utf-8", "replace")
    try:
        subprocess.run(
            command,
            input=data,
            stdout=subprocess.DEVNULL,  # some keep running to serve the clipboard, and would hold a pipe open
            stderr=subprocess.DEVNULL,
            timeout=_PATIENCE_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        return f"{command[0]} failed: {error}"
    return ""


def advice(text: str) -> str:
    """The remark where only the terminal can copy."""
    if len(text.encode("utf-8", "replace")) * 4 / 3 > OSC_52_MOST:
        return "too long for most terminals (OSC 52); wl-copy or xclip would do it"
    return "copied by the terminal (OSC 52); if not, install wl-copy or xclip"
