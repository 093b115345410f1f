"""What a trained network takes of the target's states, kept for every token of the text."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from specchat.core.states import TextStates
from specchat.models.base.cache_rows import common_prefix


class TextInputs:
    """Rows by position in the text. What comes again replaces what was known from there on: the text was changed."""

    def __init__(self, taps: Sequence[int], fuse: Callable[[Tensor], Tensor]) -> None:
        """No text yet; `fuse` makes (n, d) rows of (n, taps, width) states."""
        self._taps, self._fuse = taps, fuse
        self._text: list[int] = []
        self._rows = torch.empty(0, 0)

    @torch.inference_mode()
    def take(self, states: TextStates) -> None:
        """The states of some tokens; those before them are known."""
        assert states.first <= len(self._text), "states of a text have no gap"
        features = torch.stack([states.layers[layer] for layer in self._taps], dim=1)
        rows = self._fuse(features.to("cpu", torch.float32))
        if states.end > len(self._rows):
            room = rows.new_zeros(max(states.end, 2 * len(self._rows), 256), rows.shape[1])
            if states.first:
                room[: states.first] = self._rows[: states.first]
            self._rows = room
        self._rows[states.first : states.end] = rows
        self._text[states.first :] = states.tokens

    def known(self, text: Sequence[int]) -> int:
        """How many leading tokens of this text there are rows of."""
        return common_prefix(self._text, text)

    def rows(self, first: int, end: int) -> Tensor:
        """(end − first, d) rows of these positions."""
        assert end <= len(self._text), "these rows are known"
        return self._rows[first:end]
