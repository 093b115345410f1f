"""System messages that the user saved by name: one text file each, in the folder `system` of the configuration."""

from __future__ import annotations

import re
from pathlib import Path

from specchat.config.directories import config_dir
from specchat.config.kept_files import replacing
from specchat.errors import UsageError, cut

_NAME = re.compile(r"\w[\w-]{0,39}")
_MOST_BYTES = 1_000_000


def saved_system_messages() -> list[str]:
    """Their names, sorted."""
    try:
        return sorted(file.stem for file in _folder().glob("*.txt") if _NAME.fullmatch(file.stem))
    except OSError:
        return []


def save_system_message(name: str, text: str) -> Path:
    """Save this text under this name, in place of what it was; returns the file.

    Raises:
        UsageError: that is no name, or the file cannot be written.
    """
    if not _NAME.fullmatch(name):
        raise UsageError(f"{cut(name, 40)!r} is not a name: up to 40 letters, digits, - and _")
    file = _folder() / f"{name}.txt"
    try:
        with replacing(file) as draft:
            draft.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{file} cannot be written: {error.strerror or error}") from None
    return file


def system_message(words: str) -> str:
    """The saved message of this name, or the words themselves where none has it.

    Raises:
        UsageError: there is one, but it cannot be read.
    """
    if words not in saved_system_messages():
        return words
    file = _folder() / f"{words}.txt"
    try:
        if file.stat().st_size > _MOST_BYTES:
            raise UsageError(f"{file} is too large for a system message")
        return file.read_text(encoding="utf-8").strip("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{file} cannot be read: {error}") from None


def _folder() -> Path:
    return config_dir() / "system"
