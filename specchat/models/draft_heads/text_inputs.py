"""What a trained network takes of the target's states, kept for every token of the text."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from specchat.core.states import HostRow, TextStates, host_row_of, row_of, rows_by_token

_MOST_WAITING_TOKENS = 256
"""States of so many tokens are kept as they came, with all that was read beside them: rows that are asked for by nobody
are made many at a time."""


class TextInputs:
    """Rows by position in the text. What comes again replaces what was known from there on: the text was changed."""

    def __init__(self, taps: Sequence[int], fuse: Callable[[Tensor], Tensor]) -> None:
        """No text yet; `fuse` makes (n, d) rows of (n, taps, width) states."""
        self._taps, self._fuse = tuple(taps), fuse
        self._text: list[int] = []
        self._rows = torch.empty(0, 0)
        self._waiting: list[TextStates] = []
        self._skipped: set[int] = set()  # positions without a state
        self._waiting_tokens = 0
        self._compared: Sequence[int] = ()  # the text last asked about,
        self._same = 0  # and how many of its first tokens are known to be those of this one

    def take(self, states: TextStates) -> None:
        """The states of some tokens; those before them are known."""
        assert states.first <= len(self._text), "states of a text have no gap"
        self._waiting.append(states)
        self._waiting_tokens += len(states.tokens)
        self._text[states.first :] = states.tokens
        self._same = min(self._same, states.first)
        if self._skipped:
            self._skipped.difference_update(range(states.first, states.end))
        if self._waiting_tokens > _MOST_WAITING_TOKENS:
            self._make_rows()

    def skip(self, first: int, tokens: Sequence[int]) -> None:
        """Some tokens whose states do not come; those before them are known, or were skipped."""
        assert first <= len(self._text), "a text has no gap"
        self._text[first:] = tokens
        self._same = min(self._same, first)
        self._skipped.update(range(first, len(self._text)))

    def cover(self, text: Sequence[int], count: int) -> bool:
        """Whether the first `count` tokens of this are the text so far, and there is a state of the last of them.

        A text that goes on from round to round stays one list: only what came to it is compared.
        """
        same = min(self._same, count) if text is self._compared else 0
        if self._text[same:count] != list(text[same:count]):
            return False
        self._compared, self._same = text, count
        return count - 1 not in self._skipped

    def at(self, position: int) -> Tensor:
        """(taps, width) states at a position where they still wait, else (d,) its row, for readers of one row."""
        assert position < len(self._text), "this position is known"
        for states in reversed(self._waiting):
            if states.first <= position:
                row = row_of(states.layers, self._taps, position - states.first)
                there = row.dtype == torch.float32 and row.is_cpu  # asked every round: a copy to itself takes as long
                return row if there else row.to("cpu", torch.float32)
        return self._rows[position]

    def host_row(self, position: int) -> HostRow | None:
        """Where the states at a position lie for compiled code, if they still wait as they came."""
        assert position < len(self._text), "this position is known"
        for states in reversed(self._waiting):
            if states.first <= position:
                return host_row_of(states.layers, self._taps, position - states.first)
        return None

    def rows(self, first: int, end: int) -> Tensor:
        """(end − first, d) rows of these positions."""
        assert end <= len(self._text), "these rows are known"
        self._make_rows()
        return self._rows[first:end]

    @property
    def tokens(self) -> Sequence[int]:
        """The text as far as it is known."""
        return self._text

    def holds(self, first: int, tokens: Sequence[int]) -> bool:
        """Whether the text has these tokens at this position."""
        return self._text[first : first + len(tokens)] == list(tokens)

    def kept(self, first: int, end: int) -> tuple[Tensor, Tensor]:
        """(n, d) copies of the rows of these positions, and (n,) bool, which of them are known; the others are 0."""
        known = torch.tensor([position not in self._skipped for position in range(first, end)])
        rows = self.rows(first, end)
        copies = torch.zeros(end - first, rows.shape[1])
        copies[: len(rows)] = rows
        copies[~known] = 0.0
        return copies, known

    @torch.inference_mode()
    def _make_rows(self) -> None:
        """Make rows of the states that wait, in the order they came in; what goes on from what came before, with it."""
        together: list[Tensor] = []
        for at, states in enumerate(self._waiting):
            together.append(rows_by_token(states.layers, self._taps))
            if at + 1 == len(self._waiting) or self._waiting[at + 1].first != states.end:
                self._write(states.end, torch.cat(together))
                together.clear()
        self._waiting.clear()
        self._waiting_tokens = 0

    def _write(self, end: int, features: Tensor) -> None:
        """Rows of (n, taps, width) states, the last of which is at `end` − 1."""
        rows = self._fuse(features.to("cpu", torch.float32))
        first = end - len(rows)
        if end > len(self._rows):
            room = rows.new_zeros(max(end, 2 * len(self._rows), 256), rows.shape[1])
            if len(self._rows):
                room[: len(self._rows)] = self._rows
            self._rows = room
        self._rows[first:end] = rows
