"""A decoder layer while it drafts: it reads the text, and rows behind it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specchat.core.states import TextStates
from specchat.models.draft_heads.attention_rows import AttentionRows
from specchat.models.draft_heads.drafting_inputs import DraftingInputs
from specchat.models.draft_heads.eagle import Eagle
from specchat.models.draft_heads.parallel_spec import ParallelSpec
from specchat.models.draft_heads.text_entries import TextEntries


class LayerReading:
    """A `RootReading`: what a layer has read of a text. Rows behind it are written over when more of it is read."""

    skip = None  # it reads the whole text

    def __init__(self, layer: Eagle, given: DraftingInputs, masks: tuple[Tensor, Tensor] | None = None) -> None:
        """Nothing read yet.

        Args:
            masks: (m, d) twice, what `Eagle.before_attention` takes of states and of tokens: rows that are read behind
                the last entry, each of which sees all before it.
        """
        self.passes = 0
        self._root = torch.empty(0)
        self._masks = masks
        self._layer, self._given = layer, given
        self._entries = TextEntries(given)
        self._rows = AttentionRows(layer.sizes.kv_heads, layer.sizes.head_dim)

    @property
    def entries(self) -> int:
        """How many entries of the text were read."""
        return len(self._entries)

    def take(self, states: TextStates) -> None:
        self._entries.take(states)

    @torch.inference_mode()
    def begin(self, history: Sequence[int]) -> bool:
        """Read what is new of the text, and the last entry in any case: its state is where drafting begins."""
        if not self._given.complete(history):
            return False
        for first, inputs, tokens in self._entries.unread(history):
            own = len(inputs)
            if self._masks is not None and first + own == len(history) - 1:
                inputs, tokens = (torch.cat(rows) for rows in zip((inputs, tokens), self._masks, strict=True))
            count = len(inputs)
            seen = torch.ones(count, first + count, dtype=torch.bool).tril(first)
            states = self.step(inputs, tokens, torch.arange(first, first + count), first, seen)
            self._root = states[own - 1 :]
        return True

    def root(self) -> Tensor:
        """(1 + m, d) states of the last entry and the masks."""
        return self._root

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


def masked_text(network: ParallelSpec, given: DraftingInputs) -> LayerReading:
    """The reading of a layer with masks."""
    with torch.inference_mode():
        return LayerReading(network.layer, given, (network.mask_states, network.of_tokens(network.mask_tokens)))
