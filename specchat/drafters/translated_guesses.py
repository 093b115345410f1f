"""What a draft model says, as guesses of the target's tokens: equal ones joined, the likeliest first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from specchat.drafters.likeliest_tokens import Floats, Likeliest
from specchat.drafters.point_guesses import Scores, Tokens


class TranslatedGuesses(NamedTuple):
    """What one pass says after some nodes of the draft model's tree, before equal guesses are joined.

    Args:
        named: (R, C) the draft tokens.
        own: (R, C + 1) the target's tokens that they begin with, and last what an n-gram is; different negative numbers
            where there is none.
        logprobs: (R, C + 1) theirs.
        ngrams: row → the draft tokens of that n-gram.
    """

    named: Tokens
    own: Tokens
    logprobs: Scores
    ngrams: Mapping[int, tuple[int, ...]]

    def source(self, row: int, token: int) -> tuple[int, ...]:
        """The draft tokens that say how this guess goes on; none where it was not guessed."""
        columns = [column for column, own in enumerate(self.own[row].tolist()) if own == token]
        if not columns:
            return ()
        column, _ = self._together(row, columns)
        return self.ngrams[row] if column == self.named.shape[1] else (int(self.named[row, column]),)

    def joined(self, said: Likeliest) -> tuple[Tokens, Floats]:
        """(R, C + 1) each: different tokens of the target, the likeliest first, and their logits; −inf behind the last.

        What is not changed keeps the draft's logit to the bit.
        """
        own, size = self.own, self.named.shape[1]
        values = np.full(own.shape, -np.inf, dtype=np.float32)
        values[:, :size] = said.values[:, :size]
        for row in self.ngrams:
            values[row, [0, -1]] = self.logprobs[row, [0, -1]] + said.totals[row]
        values[own < 0] = -np.inf
        ordered = np.sort(own, axis=1)
        for row in np.flatnonzero((ordered[:, 1:] == ordered[:, :-1]).any(axis=1)).tolist():
            columns: dict[int, list[int]] = {}
            for column, token in enumerate(own[row].tolist()):
                columns.setdefault(token, []).append(column)
            for equal in columns.values():
                if len(equal) > 1:
                    values[row, equal[0]] = self._together(row, equal)[1] + said.totals[row]
                    values[row, equal[1:]] = -np.inf
        order = np.argsort(-values, axis=1, kind="stable")
        tokens = np.where(values > -np.inf, own, 0)
        return np.take_along_axis(tokens, order, 1), np.take_along_axis(values, order, 1)

    def _together(self, row: int, columns: Sequence[int]) -> tuple[int, float]:
        """Of several guesses of one token the likeliest says how it goes on; their probabilities add up."""
        logprobs = self.logprobs[row]
        best, total = columns[0], float(logprobs[columns[0]])
        for column in columns[1:]:
            logprob = float(logprobs[column])
            best, total = column if logprob > total else best, float(np.logaddexp(total, logprob))
        return best, total
