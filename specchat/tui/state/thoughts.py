"""Separates a reply's thoughts, `<think>…</think>`, from the answer.

Only a block at the very beginning of a reply is a thought; the same tags in the middle of an answer are text.
Some templates open the block themselves: then the reply contains only the closing tag.
"""

from __future__ import annotations

from specchat.engine.protocol.text import between

OPEN, CLOSE = "<think>", "</think>"

Piece = tuple[str, str]


def without_thoughts(text: str) -> str:
    """The reply without its thoughts: what later prompts contain."""
    if text.lstrip().startswith(OPEN) or closes_unopened_thought(text):
        return text.partition(CLOSE)[2].lstrip("\n")
    return text


def closes_unopened_thought(text: str) -> bool:
    """Whether the text closes a thought that the template has opened."""
    return CLOSE in text and OPEN not in text.partition(CLOSE)[0]


def closes(text: str, fresh: int) -> bool:
    """Whether the thought ends within the last `fresh` characters."""
    last = text[-(fresh + len(CLOSE) - 1) :]
    return (
        CLOSE in last and (text.lstrip().startswith(OPEN) or closes_unopened_thought(text)) and text.count(CLOSE) == 1
    )


class Thoughts:
    """Separates a growing reply into thoughts and speech. Holds back text that may become part of a tag."""

    def __init__(self, *, opened: bool = False) -> None:
        self.opened = opened  # the reply begins in the middle of a thought
        self.thinking = opened
        self.ended = False  # the rest of the reply is speech
        self.tokens = 0  # pieces that were thoughts
        self._held: list[Piece] = []
        self._between = False  # the thought has ended, and the answer has not begun

    def feed(self, pieces: list[Piece]) -> tuple[list[Piece], list[Piece]]:
        """The thoughts and the speech among these pieces and those held back."""
        thought: list[Piece] = []
        if self.ended and not self._between:
            return thought, pieces
        self._held += pieces
        if not self.thinking and not self.ended:
            self._begin()
        if self.thinking:
            thought = self._until_close()
        return thought, self._take_held() if self.ended else []

    def finish(self) -> tuple[list[Piece], list[Piece]]:
        """The pieces that are still held back, at the end of the reply."""
        held = self._take_held()
        return (held, []) if self.thinking else ([], held)

    def _begin(self) -> None:
        start = _text(self._held).lstrip()
        if start.startswith(OPEN):
            self.thinking = True
            self._take(len(_text(self._held)) - len(start) + len(OPEN))
        elif not OPEN.startswith(start):
            self.ended = True

    def _until_close(self) -> list[Piece]:
        text = _text(self._held)
        at = text.find(CLOSE)
        if at >= 0:
            self.thinking, self.ended, self._between = False, True, True
            thought = self._take(at)
            self._take(len(CLOSE))
        else:
            mark = next((n for n in range(len(CLOSE) - 1, 0, -1) if text.endswith(CLOSE[:n])), 0)
            thought = self._take(len(text) - mark)
        self.tokens += len(thought)
        return thought

    def _take_held(self) -> list[Piece]:
        """The held pieces, without the empty lines between a thought and the answer."""
        if self._between:
            text = _text(self._held)
            self._take(len(text) - len(text.lstrip("\n")))
            self._between = not self._held
        held, self._held = self._held, []
        return held

    def _take(self, characters: int) -> list[Piece]:
        """Take so many characters from what is held; a piece in the middle is cut."""
        taken = between(self._held, 0, characters)
        self._held = between(self._held, characters, len(_text(self._held)))
        return taken


def _text(pieces: list[Piece]) -> str:
    return "".join(text for text, _ in pieces)
