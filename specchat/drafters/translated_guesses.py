"""What a draft model says, as guesses of the target's tokens: equal ones joined, the likeliest first."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from specchat.drafters.point_guesses import Floats, Likeliest, Tokens


class Merged(NamedTuple):
    """Draft tokens that together are one token of the target, and their log-probability."""

    ngram: tuple[int, ...]
    token: int
    logprob: float


class TranslatedGuesses(NamedTuple):
    """What is said after R nodes of the draft model's tree, before equal guesses are joined.

    Args:
        named: (R, C) the draft tokens.
        own: (R, C + 1) the target's tokens that they begin with, and last what an n-gram is; −1 where there is none.
        values: (R, C + 1) their logits; −inf where there is none.
        logsumexp: (R,) what is to be taken from logits to make log-probabilities of them.
        merged: row → that n-gram.
    """

    named: Tokens
    own: Tokens
    values: Floats
    logsumexp: Floats
    merged: Mapping[int, Merged]

    @classmethod
    def of(cls, said: Likeliest, named: Tokens, own: Tokens, merged: Mapping[int, Merged]) -> TranslatedGuesses:
        """The draft tokens that are named, as the target's; the first of an n-gram lacks what the n-gram has."""
        rows, count = named.shape
        every, values = np.empty((rows, count + 1), dtype=np.int32), np.empty((rows, count + 1), dtype=np.float32)
        every[:, :-1], every[:, -1] = own, -1
        values[:, :-1], values[:, -1] = said.values[:, :count], -np.inf
        for row, (_, token, logprob) in merged.items():
            total = float(said.logsumexp[row])
            left = math.log(max(1e-9, -math.expm1(logprob - (float(values[row, 0]) - total))))
            values[row, 0] += left
            every[row, -1], values[row, -1] = token, logprob + total
        values[every < 0] = -np.inf
        return cls(named, every, values, said.logsumexp, merged)

    def source(self, row: int, token: int) -> tuple[int, ...]:
        """The draft tokens that say how this guess goes on; none where it was not guessed."""
        own = self.own[row].tolist()
        match own.count(token):
            case 0:
                return ()
            case 1:
                column = own.index(token)
            case _:
                column, _ = self._together(row, [column for column, each in enumerate(own) if each == token])
        return self.merged[row].ngram if column == self.named.shape[1] else (int(self.named[row, column]),)

    def joined(self) -> Likeliest:
        """(R, C + 1) different tokens of the target, the likeliest first; −1 behind the last."""
        own, values = self.own, self.values
        ordered = np.sort(own, axis=1)
        equal = (ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)
        if equal.any():
            values = values.copy()
            for row in np.flatnonzero(equal.any(axis=1)).tolist():
                self._join(row, values[row])
        if (values[:, 1:] > values[:, :-1]).any():
            order = np.argsort(-values, axis=1, kind="stable")
            order += np.arange(0, order.size, order.shape[1])[:, None]
            own, values = own.take(order), values.take(order)
        return Likeliest(np.where(values > -np.inf, own, -1), values, self.logsumexp, logits=True)

    def _join(self, row: int, values: Floats) -> None:
        """Let the first of equal guesses have what all of them have."""
        columns: dict[int, list[int]] = {}
        for column, token in enumerate(self.own[row].tolist()):
            columns.setdefault(token, []).append(column)
        for token, equal in columns.items():
            if token >= 0 and len(equal) > 1:
                values[equal] = -np.inf
                values[equal[0]] = self._together(row, equal)[1] + self.logsumexp[row]

    def _together(self, row: int, columns: Sequence[int]) -> tuple[int, float]:
        """Of several guesses of one token the likeliest says how it goes on; their probabilities add up."""
        logprobs = (self.values[row, list(columns)].astype(np.float64) - float(self.logsumexp[row])).tolist()
        best, total = columns[0], logprobs[0]
        for column, logprob in zip(columns[1:], logprobs[1:], strict=True):
            best, total = column if logprob > total else best, float(np.logaddexp(total, logprob))
        return best, total
