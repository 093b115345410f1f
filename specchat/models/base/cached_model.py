"""What every model does in the same way with the text whose rows its cache holds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from typing import Generic, TypeVar

from specchat.core.states import HiddenStateSink
from specchat.models.base.cache_rows import Plan
from specchat.models.base.cached_text import CachedText
from specchat.models.base.layer_hooks import LayerWatch
from specchat.models.base.sub_layers import SubLayers

Own = TypeVar("Own")
"""The class that extends it."""


class CachedModel(ABC, Generic[Own]):
    """The part of a `Model` that is about its cache; how a pass is computed is left to those that extend it."""

    _parts: SubLayers
    """What of the network is computed."""

    def __init__(self, text: CachedText) -> None:
        self._text = text

    def with_new_cache(self) -> Own:
        """The same weights with a cache of its own."""
        return self.view()

    def view(
        self,
        layers: Collection[int] | None = None,
        skip_attention: Collection[int] = (),
        skip_mlp: Collection[int] = (),
    ) -> Own:
        """The same weights without some layers or halves of layers, with a cache of its own for what is left.

        Raises:
            ModelError: layers of a form that is not known.
        """
        return self._of_parts(self._parts.without(layers, skip_attention, skip_mlp))

    @abstractmethod
    def _of_parts(self, parts: SubLayers) -> Own:
        """The same weights with these sub-layers alone, and a cache of its own."""

    def cached(self, tokens: Sequence[int]) -> int:
        """How many leading tokens of these the cache holds already."""
        return self._text.cached(tokens)

    def prefill(
        self,
        tokens: Sequence[int],
        on_chunk: Callable[[int, int], None] | None = None,
        tap: HiddenStateSink | None = None,
    ) -> None:
        """Make the cache hold exactly these tokens, reading only what it does not hold yet."""
        self._text.prefill(tokens, on_chunk, tap, self._read_text)

    def copy_rows_from(self, tokens: Sequence[int], positions: Sequence[int]) -> None:
        """Hold copies of the source's rows at these positions of a text, and nothing else of it."""
        self._text.copy_rows_from(tokens, positions)

    def keep(self, path: Sequence[int]) -> None:
        """Keep the root and the accepted path, forget the rest of the tree."""
        self._text.keep(path)

    def fill_for_benchmark(self, tokens: int) -> None:
        """Act as if so many tokens had been read; their rows hold zeros or stale values."""
        self._text.rows.fill_for_benchmark(tokens)

    @abstractmethod
    def _read_text(self, plan: Plan, watch: LayerWatch | None) -> object:
        """Compute a pass over tokens of the text, and show the watch the states after the layers it wants."""
