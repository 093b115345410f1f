"""Which part of a long text's cache a view of the target holds, to draft with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from specchat.core.optional_model_abilities import HoldsPartsByLayer
from specchat.core.seams import Model
from specchat.core.states import HiddenStateSink
from specchat.indexes.text_chunks import TextChunks, chunk_positions

_CHUNK_TOKENS = 8
_RECENT = 4
"""Of the budget, one part in so many is for the last tokens."""


class CachePart(Protocol):
    """Chooses the part that a view holds."""

    hidden_state_sink: HiddenStateSink | None

    def copy_rows_from(self, history: Sequence[int], budget: int) -> None:
        """Let the view hold a part of the text before its last token, no more than so many rows in a layer."""

    def forget(self) -> None:
        """Give back what is known of the text."""


def part_of(view: Model, layers: int) -> CachePart:
    """By each layer's own keys and queries where the view can, else by states after the middle one of its layers."""
    return PartByLayer(view) if isinstance(view, HoldsPartsByLayer) else PartByStates(view, layers // 2)


class PartByLayer:
    """Every layer holds the chunks whose mean keys answer its queries best.

    The queries are those of the text's last token, which the target reads next.
    """

    hidden_state_sink: HiddenStateSink | None = None

    def __init__(self, view: HoldsPartsByLayer) -> None:
        self._view = view

    def copy_rows_from(self, history: Sequence[int], budget: int) -> None:
        """Hold what each layer asks for; a text within the budget as it is, without a pass."""
        text = history[:-1]
        if len(text) <= budget:
            self._view.copy_rows_from(text, range(len(text)))
            return
        found = self._view.chunk_scores(history, _CHUNK_TOKENS)

        def between(first: int, end: int) -> Tensor:
            return found.scores[:, first // _CHUNK_TOKENS : end // _CHUNK_TOKENS]

        if found.tokens <= budget:
            self._view.copy_rows_from(text, range(found.tokens))
        else:
            chosen = chunk_positions(found.tokens, budget, budget // _RECENT, _CHUNK_TOKENS, between)
            self._view.copy_rows_by_layer(text, chosen)

    def forget(self) -> None:
        """Nothing is known between two choices."""


class PartByStates:
    """The chunks most like the last token that was read, by states after one layer; the same for all layers."""

    def __init__(self, view: Model, layer: int) -> None:
        self._view = view
        self._chunks = TextChunks(layer, _CHUNK_TOKENS)
        self.hidden_state_sink: HiddenStateSink | None = HiddenStateSink(frozenset({layer}), self._chunks.take)

    def copy_rows_from(self, history: Sequence[int], budget: int) -> None:
        """Hold the chunks most like the end."""
        text = history[:-1]
        chosen = self._chunks.choose(len(text), budget, recent_tokens=budget // _RECENT)
        self._view.copy_rows_from(text, chosen)

    def forget(self) -> None:
        """Forget the states."""
        self._chunks.forget()
