"""Files attached by `@path`: appended to the message when it is sent, folded where it is shown.

Each attached file is written with its number of lines and read back by counting them, so that nothing in a file can
end it early, and a stored chat needs only its text.
"""

from __future__ import annotations

import html
import os
import re
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from specchat.errors import UsageError, nearest
from specchat.tui.text import numbers

LARGEST_BYTES = 1_000_000
"""The largest file that can be attached."""

_MENTION = re.compile(r"""@(?<![^\s(\[]@)(@?)(?:"([^"\n]*)"|'([^'\n]*)'|([^\s"'@]+))""")
_TRAILING = ".,;:!?)]}"
_FILE_NAME = re.compile(r"[~/]|\.\w{1,6}$")
_OPEN, _CLOSE = re.compile(r'<file path="([^"\n]*)" lines="([0-9]{1,9})">'), "</file>"
_MOST_SEEN = 2_000
_MOST_TRAILING = 16  # characters of punctuation behind a path


@dataclass(frozen=True)
class Attached:
    path: str  # as the user wrote it
    lines: tuple[str, ...]

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    @property
    def size(self) -> str:
        return f"{len(self.lines):,} line{'s' if len(self.lines) != 1 else ''}"


def inline(text: str, folder: Path) -> str:
    """The message as it is sent: mentioned files are appended, `@@` becomes `@`.

    Raises UsageError where a file that is clearly meant does not exist or is not text.
    """
    files = {path: Attached(path, _read(_full(path, folder), path)) for path in _mentioned_paths(text, folder)}
    spoken = _MENTION.sub(lambda match: match.group()[1:] if match[1] else match.group(), text)
    return "\n\n".join([spoken, *map(_block, files.values())])


def split(content: str) -> tuple[str, list[Attached]]:
    """The text and the attached files of a message; the inverse of `inline`."""
    lines = content.split("\n")
    blocks = _blocks(lines)
    if not blocks:
        return content, []
    files = [Attached(path, tuple(lines[at + 1 : end])) for at, end, path in blocks]
    return "\n".join(lines[: max(0, blocks[0][0] - 1)]), files


def as_read(content: str) -> str:
    """A message as the model reads it: a file that is attached is mentioned by its path, without `@` and quotes."""
    text, files = split(content)
    paths = {file.path for file in files}

    def read(mention: re.Match[str]) -> str:
        path = mention[2] or mention[3] or mention[4] or ""
        named = path in paths or path.rstrip(_TRAILING) in paths
        return path if named and not mention[1] else mention.group()

    return _MENTION.sub(read, text) + content[len(text) :] if files else content


def path_being_typed(before: str) -> tuple[int, str] | None:
    """The path before the cursor and where it begins; None where no path is typed."""
    typed = re.search(r"""(?<![^\s(\[])@(?:["']([^"'\n]*)|([^\s"'@]*))$""", before)
    return None if typed is None else (typed.start(typed.lastindex or 0), typed[typed.lastindex or 0])


def completions(path: str, folder: Path) -> list[str]:
    """Paths that begin like this one, folders with a slash at their end, sorted; hidden ones only if asked for."""
    head, slash, stem = path.rpartition("/")
    parent = _full(head + slash, folder) if slash else folder
    found: list[str] = []
    try:
        with os.scandir(parent) as entries:
            for _, entry in zip(range(_MOST_SEEN), entries, strict=False):
                if entry.name.startswith(stem) and (stem.startswith(".") or not entry.name.startswith(".")):
                    found.append(head + slash + entry.name + ("/" if entry.is_dir() else ""))
    except OSError:
        return []
    return sorted(found)


def _mentioned_paths(text: str, folder: Path) -> Iterator[str]:
    for match in _MENTION.finditer(text):
        if match[1]:
            continue
        if (quoted := match[2] or match[3]) is not None:
            yield quoted
        elif (path := _existing(match[4], folder, os.path.isfile)) is not None:
            yield path
        elif _FILE_NAME.search(bare := match[4].rstrip(_TRAILING)):
            if (path := _existing(match[4], folder, os.path.lexists)) is None:
                raise UsageError(f"there is no file {bare!r}{_suggestion(bare, folder)} (@@ sends it as text)")
            yield path  # reading it says why it cannot be sent


def _existing(word: str, folder: Path, exists: Callable[[Path], bool]) -> str | None:
    """The word as a path, without the punctuation of the sentence if that is what it takes."""
    for _ in range(_MOST_TRAILING + 1):
        if word and exists(_full(word, folder)):
            return word
        if not word or word[-1] not in _TRAILING:
            return None
        word = word[:-1]
    return None


def _suggestion(path: str, folder: Path) -> str:
    head, slash, name = path.rpartition("/")
    names = [found for found in completions(head + slash, folder) if not found.endswith("/")]
    close = nearest(path, names) if names else ""
    return close if close.startswith("; did") and name else ""


def _full(path: str, folder: Path) -> Path:
    try:
        return folder / Path(path).expanduser()
    except RuntimeError:  # the home of a user who does not exist
        return folder / path


def _read(file: Path, said: str) -> tuple[str, ...]:
    """The lines of a text file; raises UsageError if it is not one."""
    try:
        about = file.stat()
        if not stat.S_ISREG(about.st_mode):
            raise UsageError(f"@{said} is {'a folder' if stat.S_ISDIR(about.st_mode) else 'not a regular file'}")
        if about.st_size > LARGEST_BYTES:
            most = numbers.size(LARGEST_BYTES)
            raise UsageError(f"@{said} has {numbers.size(about.st_size)}; files of up to {most} can be sent")
        data = file.read_bytes()
    except OSError as error:
        if isinstance(error, FileNotFoundError) and file.is_symlink():
            raise UsageError(f"@{said} is a link that leads nowhere") from None
        raise UsageError(f"@{said} cannot be read: {error.strerror or error}") from None
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise UsageError(f"@{said} is not a text file (UTF-8)")
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return tuple(text.removesuffix("\n").split("\n")) if text else ()


def _block(file: Attached) -> str:
    opened = f'<file path="{html.escape(file.path)}" lines="{len(file.lines)}">'
    return "\n".join([opened, *file.lines, _CLOSE])


def _blocks(lines: list[str]) -> list[tuple[int, int, str]]:
    """Where each attached file begins and ends, and its path: the longest run of files that reaches the end.

    Every line is read once, from the last to the first: a line that opens a file does so only if its last line is
    where it says, and another file or the end of the message follows.
    """
    begins: dict[int, tuple[int, str]] = {}  # of the files from which files alone reach the end
    for at in range(len(lines) - 1, -1, -1):
        opened = _OPEN.fullmatch(lines[at])
        end = at + 1 + int(opened[2]) if opened else len(lines)
        if opened is None or end >= len(lines) or lines[end] != _CLOSE:
            continue
        if end + 1 == len(lines) or (end + 2 in begins and not lines[end + 1]):
            begins[at] = end, html.unescape(opened[1])
    at = min(begins, default=len(lines))
    found: list[tuple[int, int, str]] = []
    while at in begins:
        end, path = begins[at]
        found.append((at, end, path))
        at = end + 2
    return found
