"""The text of the prompt: what Tab completes, and long pastes, shown as one word and sent in full."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from specchat.tui.state import attachments
from specchat.tui.text.numbers import count


@dataclass(frozen=True)
class Completion:
    """Words that may replace the text from `start` to the cursor, best first."""

    start: int  # characters of the line before the word
    words: tuple[str, ...]


def complete_path(line: str, folder: Path) -> Completion | None:
    """The paths that may follow an `@` in the line up to the cursor; None where there are none."""
    if (typed := attachments.path_being_typed(line)) is None:
        return None
    start, path = typed
    quoted = line[start - 1] in ("'", '"')
    found = attachments.completions(path, folder)
    words = [f'"{path}"' if " " in path and not quoted else path for path in found]
    return Completion(start, tuple(words)) if words else None


MANY_CHARACTERS = 2_000
MANY_LINES = 20

_LABEL = re.compile(r"\[pasted [^\]\n]*\]")


def with_unix_line_ends(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")


def is_long(text: str) -> bool:
    return len(text) > MANY_CHARACTERS or text.count("\n") >= MANY_LINES


class Pastes:
    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    def label(self, text: str) -> str:
        for label, known in self._texts.items():
            if known == text:
                return label
        label, number = _label_of(text), 2
        while label in self._texts:
            label, number = f"{_label_of(text)[:-1]}, {number}]", number + 1
        self._texts[label] = text
        return label

    def unfold(self, text: str) -> str:
        """The text with its labels replaced by their pastes."""
        return _LABEL.sub(lambda match: self._texts.get(match.group(), match.group()), text)

    def fold(self, text: str) -> str:
        """The text with known pastes replaced by their labels, or by one label if it is still long."""
        for label, pasted in self._texts.items():
            text = text.replace(pasted, label)
        return self.label(text) if is_long(text) else text

    def spans(self, line: str) -> list[tuple[int, int]]:
        """The positions of labels in one line of the prompt."""
        return [match.span() for match in _LABEL.finditer(line) if match.group() in self._texts]


def _label_of(text: str) -> str:
    lines = text.rstrip("\n").count("\n") + 1
    size = f"{count(lines)} lines" if lines > 1 else f"{count(len(text))} characters"
    return f"[pasted {size}]"
