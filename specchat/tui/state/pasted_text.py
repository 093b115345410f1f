"""Long pastes, shown in the prompt as one word `[pasted 5,012 lines]` and sent in full."""

from __future__ import annotations

import re

from specchat.tui.text.numbers import count

MANY_CHARACTERS = 2_000
MANY_LINES = 20

_LABEL = re.compile(r"\[pasted [^\]\n]*\]")


def with_unix_line_ends(text: str) -> str:
    """The text with line ends as the prompt has them."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


def is_long(text: str) -> bool:
    """Too long to be edited in the prompt."""
    return len(text) > MANY_CHARACTERS or text.count("\n") >= MANY_LINES


class Pastes:
    """The pastes in the prompt and their labels."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    def label(self, text: str) -> str:
        """The label of this text from now on."""
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
