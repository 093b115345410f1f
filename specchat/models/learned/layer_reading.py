"""A decoder layer while it drafts: it reads the text, and rows behind it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specchat.core.states import TextStates
from specchat.models.learned.attention_rows import AttentionRows
from specchat.models.learned.drafting_inputs import DraftingInputs
from specchat.models.learned.eagle import Eagle
from specchat.models.learned.text_entries import TextEntries


class LayerReading:
    """What a layer has read of a text. Rows behind it are written over when the text is read again."""

    def __init__(self, layer: Eagle, given: DraftingInputs) -> None:
        self.passes = 0
        self._layer, self._given = layer, given
        self._entries = TextEntries(given)
        self._rows = AttentionRows(layer.sizes.kv_heads, layer.sizes.head_dim)

    @property
    def entries(self) -> int:
        """How many entries of the text were read."""
        return len(self._entries)

    def take(self, states: TextStates) -> None:
        self._entries.take(states)

    def text(self, history: Sequence[int], inputs: Tensor | None = None, tokens: Tensor | None = None) -> Tensor:
        """(1 + m, d) states of the last entry and of m rows behind it, which each see all before them.

        What was read before is not read again, but for the last entry.

        Args:
            history: whose states are known but for its last token.
            inputs, tokens: (m, d) what the further rows are made of, as `Eagle.before_attention` takes it; None: none.
        """
        behind = 0 if inputs is None else len(inputs)
        states = torch.empty(0)
        for first, some in self._entries.unread(history):
            end = first + len(some)
            rows, taken, count = self._given.text.rows(first, end), self._given.tokens.of(some), len(some)
            if inputs is not None and tokens is not None and end == len(history) - 1:
                rows, taken, count = torch.cat([rows, inputs]), torch.cat([taken, tokens]), count + behind
            seen = torch.ones(count, first + count, dtype=torch.bool).tril(first)
            states = self.step(rows, taken, torch.arange(first, first + count), first, seen)
        return states[-1 - behind :]

    def step(self, inputs: Tensor, tokens: Tensor, positions: Tensor, place: int, seen: Tensor) -> Tensor:
        """(n, d) states of rows that are written from `place` on: one pass of the layer.

        Args:
            inputs: (n, d) fused states of the target, or states of this layer.
            tokens: (n, d) what `Eagle.of_tokens` gives for those that follow them.
            positions: (n,).
            seen: (n, place + n) bool, what each row attends to.
        """
        residual, queries, keys, values = self._layer.before_attention(inputs, tokens, positions)
        self.passes += 1
        return self._layer.after_attention(residual, self._rows.attend(place, queries, keys, values, seen))
