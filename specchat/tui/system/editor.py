"""Runs the user's editor on the prompt."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from specchat.errors import UsageError

_COMMON = ("nano", "vim", "vi", "notepad")


def editor_command(environment: Mapping[str, str] = os.environ) -> list[str]:
    """The editor $VISUAL or $EDITOR names, else one that is commonly there; raises UsageError without any."""
    for name in ("VISUAL", "EDITOR"):
        if said := environment.get(name, "").strip():
            try:
                return shlex.split(said)
            except ValueError as error:
                raise UsageError(f"{name} = {said!r} is not a valid command: {error}") from None
    found = next((path for name in _COMMON if (path := shutil.which(name))), None)
    if found is None:
        raise UsageError("no editor was found; VISUAL or EDITOR names one")
    return [found]


def edited(text: str, command: list[str]) -> str:
    """The text after the user has left the editor; raises UsageError where it failed, and then nothing is changed."""
    handle, name = tempfile.mkstemp(prefix="specchat-", suffix=".md")  # readable by its owner alone
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        code = subprocess.run([*command, name], check=False).returncode
        if code:
            raise UsageError(f"{command[0]} ended with code {code}; the prompt is as it was")
        return Path(name).read_text(encoding="utf-8").rstrip("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{command[0]} could not be used: {getattr(error, 'strerror', None) or error}") from None
    finally:
        with suppress(OSError):
            os.unlink(name)
