"""Thoughts that a model writes down before it answers, `<think>…</think>`: told apart, folded, not sent on.

Only a block at the very beginning of a reply is a thought; the same words in the middle of an answer are text.
Some templates open the block themselves: then a reply has only its end.
"""

from __future__ import annotations

OPEN, CLOSE = "<think>", "</think>"

Piece = tuple[str, str]


def spoken(text: str) -> str:
    """What of a reply is said to the user, and what the model is reminded of later."""
    if text.lstrip().startswith(OPEN) or opened_before(text):
        return text.partition(CLOSE)[2].lstrip("\n")
    return text


def opened_before(text: str) -> bool:
    """Whether a thought ends here that the template had opened."""
    return CLOSE in text and OPEN not in text.partition(CLOSE)[0]


def closes(text: str, fresh: int) -> bool:
    """Whether the thought ends within the last `fresh` characters."""
    last = text[-(fresh + len(CLOSE) - 1) :]
    return CLOSE in last and (text.lstrip().startswith(OPEN) or opened_before(text)) and text.count(CLOSE) == 1


class Thoughts:
    """Takes a reply's pieces as they come and tells thoughts from speech. Holds back what may become a mark."""

    def __init__(self, *, opened: bool = False) -> None:
        self.opened = opened  # the reply begins in the middle of a thought
        self.thinking = opened
        self.over = False  # from here on everything is speech
        self.tokens = 0  # pieces that were thoughts
        self._held: list[Piece] = []
        self._between = False  # the thought is over, and the answer has not begun

    def feed(self, pieces: list[Piece]) -> tuple[list[Piece], list[Piece]]:
        """The thoughts and the speech among these pieces and those held back."""
        thought: list[Piece] = []
        if self.over and not self._between:
            return thought, pieces
        self._held += pieces
        if not self.thinking and not self.over:
            self._begin()
        if self.thinking:
            thought = self._until_close()
        return thought, self._release() if self.over else []

    def finish(self) -> tuple[list[Piece], list[Piece]]:
        """What was still held back, because no more pieces will come."""
        held = self._release()
        return (held, []) if self.thinking else ([], held)

    def _begin(self) -> None:
        start = _text(self._held).lstrip()
        if start.startswith(OPEN):
            self.thinking = True
            self._drop(len(_text(self._held)) - len(start) + len(OPEN))
        elif not OPEN.startswith(start):
            self.over = True

    def _until_close(self) -> list[Piece]:
        text = _text(self._held)
        at = text.find(CLOSE)
        if at >= 0:
            self.thinking, self.over, self._between = False, True, True
            thought = self._drop(at)
            self._drop(len(CLOSE))
        else:
            mark = next((n for n in range(len(CLOSE) - 1, 0, -1) if text.endswith(CLOSE[:n])), 0)
            thought = self._drop(len(text) - mark)
        self.tokens += len(thought)
        return thought

    def _release(self) -> list[Piece]:
        """What is held, without the empty lines between a thought and the answer."""
        if self._between:
            text = _text(self._held)
            self._drop(len(text) - len(text.lstrip("\n")))
            self._between = not self._held
        held, self._held = self._held, []
        return held

    def _drop(self, characters: int) -> list[Piece]:
        """Take so many characters from what is held; a piece in the middle is cut."""
        taken: list[Piece] = []
        while characters > 0 and self._held:
            text, origin = self._held.pop(0)
            taken.append((text[:characters], origin))
            if len(text) > characters:
                self._held.insert(0, (text[characters:], origin))
            characters -= len(text)
        return taken


def _text(pieces: list[Piece]) -> str:
    return "".join(text for text, _ in pieces)
