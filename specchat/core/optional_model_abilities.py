"""What a model may do besides reading: say which tokens it can guess, which parts of a text its layers look at, and
hold those parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from torch import Tensor

from specchat.core.record import record
from specchat.core.seams import Model


@runtime_checkable
class GuessesSome(Protocol):
    """A model that may have been trained to guess some tokens alone."""

    @property
    def guessable(self) -> Sequence[int]:
        """These tokens, the most frequent first; empty where it can guess all."""


@record
class ChunkScores:
    """How well the chunks of a text answer what is read next.

    Args:
        tokens: so many tokens of the text are held.
        scores: (layers, chunks) float32, on the host: the product of a query with the mean of a chunk's keys, over the
            root of the head size; the mean of all heads. Chunks are those that are held whole, from the first token
            on. All scores are 0 in layers that see only a window of the text.
    """

    tokens: int
    scores: Tensor


@runtime_checkable
class HoldsPartsByLayer(Model, Protocol):
    """A twin or view whose layers may each hold another part of the text that its source holds."""

    def chunk_scores(self, tokens: Sequence[int], chunk_tokens: int) -> ChunkScores:
        """Score the chunks of a text that the source holds, by the queries of the first token that it does not hold.

        If it holds the whole text, the queries are those of the last token. Costs a pass of one row through the source,
        whose text stays as it is; it is counted here.
        """

    def copy_rows_by_layer(self, tokens: Sequence[int], positions: Tensor) -> None:
        """As `copy_rows_from`, with positions for each layer.

        Args:
            positions: (layers, n) int64, ascending; of tokens that the source holds. The same in all layers that see
                only a window of the text.
        """
