"""The history of sent messages: one JSON text per line in a private file that several apps may share."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, suppress
from pathlib import Path

import msgspec

from specchat.config.file_reading import UNREADABLE
from specchat.config.kept_files import locked, read_end, replacing

FILE = "prompts.jsonl"
"""Its name, beside the chats."""

KEPT = 1000
"""Texts that survive when the file is shortened, at twice as many."""

LONGEST_KEPT = 20_000
"""Characters; what is longer is remembered for this session only."""

MOST_BYTES = 16 << 20
"""How much of the file's end is read, and survives when it is shortened."""

_PATIENCE_S = 0.5
_ATTACHED = '\n\n<file path="'
"""Begins what a message has behind its own text where files are attached."""


class _Line(msgspec.Struct):
    text: str


class History:
    """The sent messages, oldest first; without a file they last as long as the app."""

    def __init__(self, file: Path | None = None, prepare: Callable[[Path], object] = lambda folder: None) -> None:
        """`prepare` makes the file's folder when something is written for the first time."""
        self._file = file
        self._prepare = prepare
        self._texts: list[str] | None = None
        self.problem = ""  # why the file cannot be written

    @property
    def texts(self) -> list[str]:
        """All of them; the file is read when they are first asked for."""
        if self._texts is None:
            self._texts = self._read()
        return self._texts

    def add(self, text: str) -> None:
        """Remember one more, unless it only repeats the last."""
        if not text.strip() or self.texts[-1:] == [text]:
            return
        self.texts.append(text)
        if self._file is not None and len(text) <= LONGEST_KEPT and not self.problem:
            try:
                self._append(self._file, text)
            except OSError as error:
                self.problem = f"what you send is not remembered: {error.strerror or error}"

    def found(self, words: str) -> list[str]:
        """Those that contain every word, newest first, none twice."""
        wanted = words.lower().split()
        newest = dict.fromkeys(reversed(self.texts))
        return [text for text in newest if all(word in text.lower() for word in wanted)]

    def forget(self, texts: Collection[str]) -> None:
        """Forget messages that were sent with these texts, and commands that set one of them, such as a title."""
        if self._file is None or not texts or not self._file.is_file():
            return
        spoken = {text.partition(_ATTACHED)[0] for text in texts}
        try:
            _rewrite(self._file, lambda lines: [line for line in lines if not _says(_text_of(line), spoken)])
        except OSError as error:
            self.problem = f"what was sent cannot be forgotten: {error.strerror or error}"

    def _append(self, file: Path, text: str) -> None:
        self._prepare(file.parent)
        line = json.dumps({"text": text}, ensure_ascii=False).encode("utf-8", "replace") + b"\n"
        with _locked(file):
            handle = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                cut_off = read_end(file, 1) not in (b"", b"\n")  # a full disk, or a program that was killed
                os.write(handle, b"\n" + line if cut_off else line)
            finally:
                os.close(handle)

    def _read(self) -> list[str]:
        if self._file is None or not self._file.is_file():
            return []
        try:
            lines, whole = _last_lines(self._file)
        except OSError as error:
            self.problem = f"what you sent before cannot be read: {error.strerror or error}"
            return []
        if not whole or len(lines) > 2 * KEPT:
            with suppress(OSError):  # read again, because another app may have added some
                _rewrite(self._file, lambda lines: lines[-KEPT:])
        return [text for line in lines[-2 * KEPT :] if (text := _text_of(line))]


def _says(sent: str, spoken: Collection[str]) -> bool:
    """Whether one of these messages was sent so, or a command set it. A line that cannot be read may hold any."""
    argument = sent.partition(" ")[2] if sent.startswith("/") else sent
    message = sent.removeprefix("/") if sent.startswith("//") else argument.strip()
    return not sent or any(said in spoken for said in (sent, message, message.replace("@@", "@")))


def _rewrite(file: Path, keep: Callable[[list[bytes]], list[bytes]]) -> None:
    """Keep some of the lines at the end of the file; OSError if the disk does not take it."""
    with _locked(file), replacing(file, durable=False, alone=True) as fresh:
        fresh.write_bytes(b"".join(keep(_last_lines(file)[0])))


def _locked(file: Path) -> AbstractContextManager[None]:
    return locked(file.with_suffix(".lock"), _PATIENCE_S)


def _last_lines(file: Path) -> tuple[list[bytes], bool]:
    """The lines at the end of the file, and whether those are all. One that is cut in two is left out."""
    end = read_end(file, MOST_BYTES + 1)
    whole = len(end) <= MOST_BYTES
    return (end if whole else end.partition(b"\n")[2]).splitlines(keepends=True), whole


def _text_of(line: bytes) -> str:
    """The text of one line; empty where the line is damaged or was not written here."""
    try:
        said = msgspec.json.decode(line, type=_Line)
    except UNREADABLE:
        return ""
    return said.text if len(said.text) <= LONGEST_KEPT else ""
