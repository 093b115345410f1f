"""Texts of the target on disk: one a line, appended as each is finished, so that nothing finished is ever lost."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from specchat.errors import TrainingError


@dataclass(frozen=True)
class TrainingText:
    """A prompt in the target's chat format and the target's own reply.

    Args:
        index: which of the texts it is; the same index and seed give the same text.
        prompt: tokens up to where the reply begins.
        reply: tokens of the reply, its end included where it has one; empty where the prompt was refused.
        greedy: whether the reply is the likeliest token each time.
    """

    index: int
    prompt: list[int]
    reply: list[int]
    greedy: bool

    @property
    def tokens(self) -> list[int]:
        return self.prompt + self.reply


class TextStore:
    """A file of texts. A line that was cut off by a sudden end is written again."""

    def __init__(self, file: Path, vocab_size: int) -> None:
        self.file = file
        self._vocab_size = vocab_size
        self.texts: dict[int, TrainingText] = {text.index: text for text in self._read()} if file.exists() else {}

    @property
    def reply_tokens(self) -> int:
        return sum(len(text.reply) for text in self.texts.values())

    def append(self, text: TrainingText) -> None:
        """Keep a finished text."""
        line = json.dumps(asdict(text), separators=(",", ":")) + "\n"
        try:
            with open(self.file, "a", encoding="utf-8", opener=_readable_by_its_owner) as file:
                file.write(line)
        except OSError as error:
            raise TrainingError(f"{self.file} cannot be written: {error.strerror or error}") from None
        self.texts[text.index] = text

    def _read(self) -> list[TrainingText]:
        try:
            data = self.file.read_bytes()
        except OSError as error:
            raise TrainingError(f"{self.file} cannot be read: {error.strerror or error}") from None
        whole = data[: data.rfind(b"\n") + 1]
        if len(whole) < len(data):
            os.truncate(self.file, len(whole))
        return [self._text(line, number) for number, line in enumerate(whole.splitlines(), 1)]

    def _text(self, line: bytes, number: int) -> TrainingText:
        try:
            said: Any = json.loads(line)
            text = TrainingText(**said)
        except (ValueError, TypeError, RecursionError) as error:
            raise TrainingError(f"{self.file}, line {number} is not a text: {error}; remove that line") from None
        if not (_is_count(text.index) and isinstance(text.prompt, list) and isinstance(text.reply, list)):
            raise TrainingError(f"{self.file}, line {number} is not a text: it needs index, prompt and reply")
        if text.reply and not text.prompt:
            raise TrainingError(f"{self.file}, line {number} is a reply to nothing; remove that line")
        if not all(_is_count(token) and token < self._vocab_size for token in text.tokens):
            raise TrainingError(
                f"{self.file}, line {number} holds something that is not a token of this target; remove that line"
            )
        return text


def _readable_by_its_owner(path: str, flags: int) -> int:
    """Open a file, which is made for its owner alone where there is none."""
    return os.open(path, flags, 0o600)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
