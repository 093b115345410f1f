"""For every token the k tokens last recorded as likely after it, in a table of V × k numbers."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

_UNKNOWN = -1


class Successors:
    """k successors per token, the likeliest first; nothing for tokens that were never learnt. 4·V·k bytes."""

    def __init__(self, vocab_size: int, k: int) -> None:
        self.k = min(k, vocab_size)
        self._vocab_size = vocab_size
        self.clear()

    def clear(self) -> None:
        """Forget all successors."""
        self._table = array("i", [_UNKNOWN]) * (self._vocab_size * self.k)

    @property
    def address(self) -> int:
        """Of the table: (V, k) numbers, −1 where nothing was learnt. Stays until all are forgotten."""
        return self._table.buffer_info()[0]

    def learn(self, token: int, successors: Sequence[int]) -> None:
        """Replace a token's successors; takes exactly k of them."""
        assert len(successors) == self.k, "a row has k successors"
        self._table[token * self.k : (token + 1) * self.k] = array("i", successors)

    def after(self, token: int) -> Sequence[int]:
        """The k successors of a token, best first; empty where nothing was learnt."""
        row = self._table[token * self.k : (token + 1) * self.k]
        return row if row[0] != _UNKNOWN else ()
