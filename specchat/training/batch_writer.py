"""Writes many texts with one target, several in each pass; each text is what plain decoding would write."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from torch import Tensor

from specchat.core.noise import Noise
from specchat.core.reading import HeadOutput
from specchat.core.sampling import Sampling, best_token
from specchat.core.target_draw import draw_token
from specchat.models.decoder.cache_rows import common_prefix
from specchat.models.decoder.decoder import TextBatch

_MOST_ROWS = 128
"""Rows of one pass. Prompts that begin together are read in several passes instead of in a long one."""


@dataclass
class Writing:
    """A text that is being written.

    Args:
        index: which of the texts it is.
        prompt: the tokens before what is written.
        sampling: how the target draws; without penalties.
        noise: of this text alone.
        most_tokens: how long what is written may get.
        done: told when it ends.
        written: so far, the token that ends it included.
        ended: whether one of the target's own ends was written.
    """

    index: int
    prompt: list[int]
    sampling: Sampling
    noise: Noise
    most_tokens: int
    done: Callable[[Writing], None]
    written: list[int] = field(default_factory=list)
    ended: bool = False

    @property
    def text(self) -> list[int]:
        return self.prompt + self.written


class BatchWriter:
    """Keeps as many texts going as there is room for; where one ends, the next one begins."""

    def __init__(self, batch: TextBatch, texts: int, ends: Collection[int]) -> None:
        self.waiting: deque[Writing] = deque()
        self._batch = batch
        self._ends = ends
        self._running: dict[int, Writing] = {}
        self._held: list[list[int]] = [[] for _ in range(texts)]

    @property
    def busy(self) -> bool:
        return bool(self._running or self.waiting)

    @property
    def idle_places(self) -> int:
        """How many more texts could be written at the same time."""
        return len(self._held) - len(self._running) - len(self.waiting)

    def step(self) -> None:
        """Read one pass and draw the next token of every text whose prompt is through."""
        self._begin()
        more, drawing = self._next_rows()
        said = self._batch.read(more)
        for text, tokens in more.items():
            self._held[text] += tokens
        for row, text in enumerate(more):
            if text in drawing:
                self._draw(text, said, row)

    def _begin(self) -> None:
        for text in range(len(self._held)):
            if text not in self._running and self.waiting:
                writing = self._running[text] = self.waiting.popleft()
                kept = common_prefix(self._held[text], writing.prompt[:-1])
                del self._held[text][kept:]
                self._batch.rewind(text, kept)

    def _next_rows(self) -> tuple[dict[int, list[int]], set[int]]:
        """The tokens that every text reads next, and the texts that have then been read to their end."""
        more: dict[int, list[int]] = {}
        drawing: set[int] = set()
        room = _MOST_ROWS - len(self._running)
        for text, writing in self._running.items():
            missing = writing.text[len(self._held[text]) :]
            more[text] = missing[: 1 + room]
            room -= len(more[text]) - 1
            if len(more[text]) == len(missing):
                drawing.add(text)
        return more, drawing

    def _draw(self, text: int, said: HeadOutput, row: int) -> None:
        writing = self._running[text]
        likeliest = None if said.likeliest is None else said.likeliest[row]
        token = _drawn(said.logits[row], likeliest, writing)
        writing.written.append(token)
        writing.ended = token in self._ends
        full = len(writing.text) >= self._batch.longest_tokens
        if writing.ended or full or len(writing.written) >= writing.most_tokens:
            del self._running[text]
            writing.done(writing)


def _drawn(logits: Tensor, likeliest: Tensor | None, writing: Writing) -> int:
    """The token that plain decoding would draw after this text."""
    sampling, noise, position = writing.sampling, writing.noise, len(writing.text)
    if sampling.greedy:
        return best_token(logits) if likeliest is None else int(likeliest[0])
    return draw_token(logits, sampling, noise, position)
