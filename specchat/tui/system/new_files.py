"""Files that are written for the user: in which format, under which name, and never over one that is there."""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from pathlib import Path

from specchat.config.file_replacing import creating
from specchat.errors import SpecchatError, UsageError, meant

_LONGEST_NAME = 50


def format_and_file(text: str, formats: Collection[str]) -> tuple[str, Path | None]:
    """What follows a command that writes a file: `json`, `notes.md`, `md notes` or nothing, which is the first format.

    Raises:
        UsageError: the file's ending is not a format, or the text is one word that is neither a format nor a file.
    """
    first, *rest = text.split(maxsplit=1) or [""]
    if not first or first.lower() in formats:
        return format_of(first.lower(), None, formats), named_path(rest[0]) if rest else None
    file = named_path(text)
    if text == file.name and not rest and not file.suffix:
        raise _no_format(text, formats, f"; as a file: {text}.{next(iter(formats))}")
    return format_of("", file, formats), file


def format_of(word: str, file: Path | None, formats: Collection[str]) -> str:
    """The format asked for by name, or by the file's ending; the first where neither says."""
    word = word or (file.suffix.lstrip(".").lower() if file else "") or next(iter(formats))
    if word not in formats:
        raise _no_format(word, formats)
    return word


def named_path(text: str) -> Path:
    """The path that was typed, with `~` as the home it stands for; of a user who does not exist it stays `~`."""
    return Path(os.path.expanduser(text))  # Path's own raises an error there


def free_name(stem: str, format: str, folder: Path) -> Path:
    """A file of this name that is not there yet."""
    names = (f"{stem}{f'-{n}' if n > 1 else ''}.{format}" for n in range(1, 10_000))
    return next(folder / name for name in names if not (folder / name).exists())


def stem_of(title: str, id: str) -> str:
    """A title as the name of a file."""
    return re.sub(r"[^\w-]+", "-", title.lower()).strip("-")[:_LONGEST_NAME].strip("-") or f"chat-{id}"


def write(content: str | bytes, file: Path) -> None:
    """A new file with this text, or these bytes: all of it or no file.

    Raises:
        UsageError: such a file is there already.
        SpecchatError: it cannot be written.
    """
    try:
        with creating(file) as draft:
            draft.write_bytes(content.encode("utf-8", "replace") if isinstance(content, str) else content)
    except FileExistsError:
        raise UsageError(f"that file is there already; choose another name: {file}") from None
    except OSError as error:
        raise SpecchatError(f"{file}: {error.strerror or error}") from None


def _no_format(word: str, formats: Collection[str], otherwise: str = "") -> UsageError:
    return UsageError(f"there is no format {word!r}, only {', '.join(formats)}{meant(word, formats) or otherwise}")
