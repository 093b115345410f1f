"""What every model does in the same way with the text whose rows its cache holds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from specchat.core.states import StateTap
from specchat.models.base.cache_rows import Plan
from specchat.models.base.cached_text import CachedText
from specchat.models.base.layer_hooks import LayerWatch


class CachedModel(ABC):
    """The part of a `Model` that is about its cache; how a pass is computed is left to those that extend it."""

    def __init__(self, text: CachedText) -> None:
        self._text = text

    def cached(self, tokens: Sequence[int]) -> int:
        """How many leading tokens of these the cache holds already."""
        return self._text.cached(tokens)

    def prefill(
        self,
        tokens: Sequence[int],
        on_chunk: Callable[[int, int], None] | None = None,
        tap: StateTap | None = None,
    ) -> None:
        """Make the cache hold exactly these tokens, reading only what it does not hold yet."""
        self._text.prefill(tokens, on_chunk, tap, self._read_text)

    def borrow(self, tokens: Sequence[int], positions: Sequence[int]) -> None:
        """Hold copies of the source's rows at these positions of a text, and nothing else of it."""
        self._text.borrow(tokens, positions)

    def keep(self, path: Sequence[int]) -> None:
        """Keep the root and the accepted path, forget the rest of the tree."""
        self._text.keep(path)

    def pretend(self, tokens: int) -> None:
        """Act as if so many tokens had been read; their rows hold zeros or stale values."""
        self._text.rows.pretend(tokens)

    @abstractmethod
    def _read_text(self, plan: Plan, watch: LayerWatch | None) -> object:
        """Compute a pass over tokens of the text, and show the watch the states after the layers it wants."""
