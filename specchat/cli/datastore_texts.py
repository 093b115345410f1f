"""Texts for a datastore: from files, from folders, from the user's chats."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from specchat.config.file_reading import open_file_or_pipe
from specchat.errors import UsageError

_LARGEST_BYTES = 64 << 20
"""Larger files in folders are left out: logs and data, not texts."""

_MOST_BYTES = 1 << 30
"""A file that is named is read whole."""

_LOOKED_AT_BYTES = 8192
"""A zero byte among the first so many bytes tells that a file is not text."""

_PIECE_CHARACTERS = 1 << 20
"""Texts are handed on in pieces of about so many characters, cut between lines."""

_MOST_CHATS = 1_000_000


def texts_of_files(paths: Sequence[Path]) -> Iterator[str]:
    """The texts of files, and of the files below folders, in order.

    A file that is named must be UTF-8 text. In folders, what is hidden, a link, not text, or too large is skipped.

    Raises:
        UsageError: a path does not exist, or a named file is not text.
    """
    for path in paths:
        if os.path.isdir(path):  # never raises
            for file in _files_below(path):
                text = _text_of(file) if file.stat().st_size <= _LARGEST_BYTES else None
                yield from _pieces(text or "")
            continue
        text = _text_of(path)
        if text is None:
            raise UsageError(f"{path} is not UTF-8 text")
        yield from _pieces(text)


def texts_of_chats() -> Iterator[str]:
    """What user and model said in the chats that are kept on this machine.

    Raises:
        StoreError: the chats cannot be read.
    """
    from specchat.store.chats import Chats
    from specchat.store.database import default_path, open_to_read

    if not default_path().exists():
        return
    with open_to_read(default_path()) as connection:
        chats = Chats(connection)
        for found in chats.summaries(limit=_MOST_CHATS):
            for message in chats.chat(found.id)[1]:
                yield from _pieces(message.content)


def _files_below(folder: Path) -> Iterator[Path]:
    for where, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(files):
            file = Path(where) / name
            if not name.startswith(".") and os.path.isfile(file) and not file.is_symlink():
                yield file


def _text_of(file: Path) -> str | None:
    """The file's text, or None where it is not UTF-8."""
    try:
        with open_file_or_pipe(file) as opened:
            data = opened.read(_LOOKED_AT_BYTES)
            if b"\0" in data:
                return None
            data += opened.read(_MOST_BYTES + 1 - len(data))
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror or error}") from None
    if len(data) > _MOST_BYTES:
        raise UsageError(f"{file} is larger than {_MOST_BYTES >> 20} MiB; split it")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return None


def _pieces(text: str) -> Iterator[str]:
    start = 0
    while start < len(text):
        end = text.find("\n", start + _PIECE_CHARACTERS) + 1 or len(text)
        if text[start:end].strip():
            yield text[start:end]
        start = end
