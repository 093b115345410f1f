"""The interface through which a decoder's weights are read: one set of names for all file formats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from specchat.models.weights.gguf_reader import FourBit
from specchat.models.weights.stored_rows import StoredRows

ALL_ROWS = slice(None)
RowChoice = slice | list[int]
"""Which rows of a weight: neighbours, or single ones in any order."""


@dataclass(frozen=True)
class TensorFacts:
    """A tensor's size and format, known without reading it.

    Args:
        label: the file it is in and its name there.
        sizes: None for a tensor that is missing.
        strange: its format, if it cannot be converted to floating point.
    """

    label: str
    sizes: tuple[int, ...] | None
    strange: str = ""


class WeightSource(Protocol):
    """Weights by our own names: `embed`, `head`, `norm`, and per layer `q`, `k`, `v`, `o`, `gate`, `up`, `down`, …"""

    @property
    def interleaved(self) -> bool:
        """Whether rows of q and k that rotate together already lie side by side."""

    @property
    def rounds(self) -> bool:
        """Whether weights may be taken in 4 bits where the source has more."""

    def stored(self, name: str, layer: int | None = None) -> StoredRows | None:
        """A weight as it lies, or None where it must be asked for in float32."""

    def dense(self, name: str, layer: int | None = None, part: str = "weight", rows: RowChoice = ALL_ROWS) -> Tensor:
        """A weight in float32, or some of its rows."""

    def outputs(self, name: str, layer: int | None = None) -> int:
        """How many rows a weight has."""

    def has(self, name: str, layer: int | None = None, part: str = "weight") -> bool:
        """Whether there is such a weight."""

    def about(self, name: str, layer: int | None = None, part: str = "weight") -> TensorFacts:
        """What can be said of it, also of one that is missing."""

    def four_bit(self, name: str, layer: int | None = None) -> FourBit | None:
        """The weight in 4 bits, unpacked, where the source has it so."""

    def embed(self, ids: list[int]) -> Tensor:
        """(n, d) float32 rows of the embedding."""

    def let_go(self) -> None:
        """Give back memory that what was read so far takes; it can be read again."""


def head_rows(source: WeightSource, tied: bool, tokens: Sequence[int]) -> Tensor:
    """(n, d) float32 rows of the head for these tokens, with the final norm's factors in them."""
    return source.dense("embed" if tied else "head", rows=list(tokens)) * source.dense("norm")
