"""The text of the prompt: what Tab completes, and long pastes, shown as one word and sent in full."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from specchat.tui.state import attachments
from specchat.tui.text.numbers import count


@dataclass(frozen=True)
class Completion:
    """Words that may replace the text from `start` to the cursor, best first."""

    start: int  # characters of the line before the word
    words: tuple[str, ...]

    def common(self) -> str:
        """The common beginning of all words."""
        first, last = min(self.words), max(self.words)
        same = (index for index, letter in enumerate(first) if last[index : index + 1] != letter)
        return first[: next(same, len(first))]


@dataclass(frozen=True)
class KnownCommand:
    """What completion needs to know of a command."""

    name: str
    takes_argument: bool
    values: Callable[[list[str]], Sequence[str]]  # the arguments before → what may come next
    joins: Callable[[list[str]], bool] = lambda _: False  # … → whether several of these may be joined by `+`
    needs: int = 0  # arguments that must be given


def complete(line: str, commands: Sequence[KnownCommand], folder: Path) -> Completion | None:
    """The completions of the line up to the cursor; None where there are none."""
    if line.startswith("/") and not line.startswith("//"):
        return _command(line, commands)
    if (typed := attachments.path_being_typed(line)) is not None:
        start, path = typed
        quoted = line[start - 1] in ("'", '"')
        found = attachments.completions(path, folder)
        words = [f'"{path}"' if " " in path and not quoted else path for path in found]
        return Completion(start, tuple(words)) if words else None
    return None


def values_of_usage(usage: str, index: int) -> list[str]:
    """The choices that a command's usage spells out for an argument: `[auto|river|log]`."""
    parts = usage.split()
    choices = parts[index].strip("[]") if index < len(parts) else ""
    return [word for word in choices.split("|") if word.islower()] if "|" in choices else []


def _command(line: str, commands: Sequence[KnownCommand]) -> Completion | None:
    name, space, rest = line[1:].partition(" ")
    if not space:
        named = sorted((c for c in commands if name in c.name), key=lambda c: not c.name.startswith(name))
        fitting = [f"/{c.name}" + (" " if c.takes_argument else "") for c in named]
        return Completion(0, tuple(fitting)) if fitting else None
    known = next((command for command in commands if command.name == name), None)
    if known is None:
        return None
    given = rest.split()
    typed = given.pop() if given and not rest[-1].isspace() else ""
    joined: list[str] = []
    if known.joins(given):
        *joined, typed = typed.split("+")
    end = " " if len(given) + 1 < known.needs else ""
    fitting = [value + end for value in known.values(given) if value.startswith(typed) and value not in joined]
    return Completion(len(line) - len(typed), tuple(fitting)) if fitting else None


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
