"""A head of the tokens that texts use most, and of those of the text being written, and rows of one in torch."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import partial
from typing import Generic, Protocol, Self, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from specchat.core.device_copy import to_device
from specchat.core.reading import HeadOutput, HeadTensors
from specchat.core.sampling import best_tokens

_MOST_ADDED = 1024
"""Tokens of texts that are kept besides the frequent ones; then they are forgotten, but for those of the text."""

_TOGETHER = 8
"""This many tokens get their rows at once: between two passes, when caches are cold, a single one takes as long."""

Rows = TypeVar("Rows")
Rows_contra = TypeVar("Rows_contra", contravariant=True)


class HeadProduct(Protocol[Rows_contra]):
    """A norm and rows of a head, which may grow."""

    def append(self, rows: Rows_contra) -> None:
        """Add rows behind those there are."""

    def scores(self, states: Tensor) -> HeadOutput:
        """Everything that can be said of (n, d) states; tokens are places among the rows."""

    def forked(self) -> HeadProduct[Rows_contra]:
        """The same rows, in the same memory until either head grows."""


class TrimmedHead(Generic[Rows]):
    """Rows of a head for frequent tokens, and for others as they come up in a text, some at a time.

    Probabilities are over the tokens that have a row. Used while drafting: what is not among them cannot be guessed.

    Reference: Goel et al., VocabTrim, arXiv:2506.22694. Differs: tokens of the text are added while it is written.

    Attributes:
        product: computes it.
        tokens: (H,) int64, the token of each row.
    """

    def __init__(
        self,
        product: Callable[[], HeadProduct[Rows]],
        tokens: Tensor,
        frequent: Rows,
        rows: Callable[[Sequence[int]], Rows] | None = None,
    ) -> None:
        """The frequent `tokens`, (H,) int64. `product` makes an empty head, which is given `frequent` for them; `rows`
        makes what it is given for further tokens, None for a head that cannot grow."""
        self._rows, self._frequent = rows, (tokens, product())
        self._frequent[1].append(frequent)
        self._begin()

    def for_another_text(self) -> Self:
        """A head of the same frequent tokens, whose rows are in memory once, and none of a text."""
        other = copy.copy(self)
        other._begin()
        return other

    def _begin(self) -> None:
        self.tokens, frequent = self._frequent
        self._there = self.tokens  # the same where the product's results lie
        self.product = frequent.forked()
        self._known: set[int] = set(self.tokens.tolist())
        self._waiting: dict[int, None] = {}

    def add(self, tokens: Sequence[int]) -> None:
        """Let these tokens be guessed too."""
        if self._rows is None:
            return
        new = self._new(tokens)
        if len(self._known) + len(new) > len(self._frequent[0]) + _MOST_ADDED:
            self._begin()
            new = self._new(tokens)[-_MOST_ADDED:]
        self._waiting = {}
        if new:
            self.product.append(self._rows(new))
            self._known.update(new)
            self.tokens = torch.cat([self.tokens, torch.tensor(new)])

    def add_later(self, tokens: Sequence[int]) -> None:
        """Let these tokens be guessed once `_TOGETHER` of them wait, or others are added."""
        if self._rows is None:
            return
        waiting, known = self._waiting, self._known
        for token in tokens:
            if token not in known:
                waiting[token] = None
        if len(waiting) >= _TOGETHER:
            self.add(tuple(waiting))

    def after(self, states: Tensor) -> HeadOutput:
        """The head's output for (n, d) states."""
        said = self.product.scores(states)
        places = said.likeliest
        assert places is not None, "every head that guesses names the likeliest"
        if len(self._there) != len(self.tokens) or self._there.device != places.device:
            self._there = to_device(self.tokens, places.device)
        tokens = self._there
        return HeadTensors(said.logits, tokens[places.long()], said.logsumexp, said.highest, tokens)

    def _new(self, tokens: Sequence[int]) -> list[int]:
        """Those of these tokens, and of those that wait, that have no row."""
        return [token for token in dict.fromkeys((*self._waiting, *tokens)) if token not in self._known]


_BEST = 64


class TorchHead:
    """A head whose rows grow, on any device and in any format."""

    def __init__(
        self,
        normed: Callable[[Tensor], Tensor],
        like: Tensor | None = None,
        finished: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        """No rows yet.

        Args:
            normed: (n, d) states → what rows are multiplied with.
            like: a tensor in the format and on the device of the rows; float32 on the processor where it is left out.
            finished: products → logits, where more than a product makes them.
        """
        self._normed, self._finished = normed, finished
        self._like = torch.empty(0) if like is None else like
        self._room = self._like.new_empty(0, 0)
        self._count = 0

    @torch.inference_mode()
    def append(self, rows: Tensor) -> None:
        """Add rows, (n, d), between passes or while a pass is taken in, which runs in this mode."""
        first, end = self._count, self._count + len(rows)
        if end > len(self._room):
            room = self._like.new_empty(max(end, len(self._room) + len(self._room) // 4), rows.shape[1])
            if first:
                room[:first] = self._room[:first]
            self._room = room
        self._room[first:end] = to_device(rows, self._room.device)
        self._count = end

    def forked(self) -> TorchHead:
        other = copy.copy(self)
        other._room = self._room = self._room[: self._count]  # without room for more: who grows copies
        return other

    def scores(self, states: Tensor) -> HeadOutput:
        logits = F.linear(self._normed(states).to(self._like), self._room[: self._count])
        logits = (logits if self._finished is None else self._finished(logits)).float()
        return output_of(logits)


def torch_trimmed_head(
    tokens: Sequence[int], rows: Callable[[Sequence[int]], Tensor], like: Tensor, epsilon: float
) -> TrimmedHead[Tensor]:
    """A head of these tokens in torch, for states that are not normed yet.

    Args:
        rows: makes (n, d) rows of tokens, the final norm's factors in them.
        like: a tensor in the format and on the device of the rows.
    """

    def normed(states: Tensor) -> Tensor:
        return F.rms_norm(states.float(), states.shape[-1:], eps=epsilon)

    return TrimmedHead(partial(TorchHead, normed, like), torch.tensor(tokens), rows(tokens), rows)


def output_of(logits: Tensor) -> HeadOutput:
    """The output of a head that guesses, from its (n, H) logits."""
    highest, places = best_tokens(logits, min(_BEST, logits.shape[1]))
    return HeadTensors(logits, places, logits.logsumexp(dim=-1), highest)


class PickedLogits:
    """The product of a head whose states are the logits of all tokens already: some of these are picked."""

    def __init__(self) -> None:
        self._tokens: list[int] = []

    def append(self, tokens: Sequence[int]) -> None:
        self._tokens = [*self._tokens, *tokens]

    def forked(self) -> PickedLogits:
        return copy.copy(self)

    def scores(self, states: Tensor) -> HeadOutput:
        return output_of(states[:, self._tokens])
