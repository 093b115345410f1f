"""The text whose rows a model's cache holds: read, copied from another model, kept after a round, or dropped."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from typing import Any, Generic, TypeVar

import torch

from specchat.core.request import PassRequest
from specchat.core.states import HiddenStateSink
from specchat.models.decoder.cache_rows import PassPlan, Rows, common_prefix
from specchat.models.decoder.kv_cache import KVCache
from specchat.models.decoder.layer_hooks import LayerWatch
from specchat.models.decoder.network import SubLayers

Own = TypeVar("Own", bound="CachedModel[Any]")
"""The class that extends it."""


class CachedModel(ABC, Generic[Own]):
    """The part of a `Model` that is about its cache; how a pass is computed is left to those that extend it.

    Attributes:
        rows: which cache row holds which token.
    """

    flexible_passes = True

    _parts: SubLayers
    """The halves of layers that are computed."""

    def __init__(self, cache: KVCache | None, source: Own | None) -> None:
        """No rows yet.

        Args:
            cache: keys and values, moved with the rows; None for a model that computes nothing from them.
            source: the model that this one was made from: `copy_rows_from` copies its rows.
        """
        self.rows = Rows()
        self._source = source
        self._stored = cache

    def with_new_cache(self) -> Own:
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

    @abstractmethod
    def _read_text(self, plan: PassPlan, watch: LayerWatch | None) -> object:
        """Compute a pass over tokens of the text, and show the watch the states after the layers it wants."""

    def cached(self, tokens: Sequence[int]) -> int:
        return common_prefix(self.rows.prefix, tokens)

    @torch.inference_mode()
    def prefill(
        self,
        tokens: Sequence[int],
        on_chunk: Callable[[int, int], None] | None = None,
        tap: HiddenStateSink | None = None,
    ) -> None:
        def read(plan: PassPlan) -> None:
            watch = None if tap is None else LayerWatch(plan, PassRequest(taps=tap.layers))
            self._read_text(plan, watch)
            if tap is not None and watch is not None and (states := watch.text_states()) is not None:
                tap.take(states)

        self.rows.read_prefix(tokens, read, on_chunk)

    @torch.inference_mode()
    def copy_rows_from(self, tokens: Sequence[int], positions: Sequence[int]) -> None:
        """Hold copies of the source's rows at these positions of a text, and nothing else of it.

        Rows at the front that were copied before and are wanted again are not copied again.
        """
        source = self._copied_from()
        held = source.cached(tokens)
        some, rows, each_its_own = source.rows.rows_to_copy(positions, held)
        if self._stored is not None and source._stored is not None:
            known = 0 if each_its_own else self.rows.already_copied(tokens, some)
            self._stored.copy_rows_(source._stored, rows, known)
        self.rows.copy_rows_from(tokens[:held], some, each_its_own)

    def keep(self, path: Sequence[int]) -> None:
        start = self.rows.held
        kept = self.rows.keep(path)
        if self._stored is not None:
            self._stored.keep_rows_(start, kept)

    def fill_for_benchmark(self, tokens: int) -> None:
        """Act as if so many tokens had been read; their rows hold zeros or stale values."""
        self.rows.fill_for_benchmark(tokens)

    def _copied_from(self) -> Own:
        assert self._source is not None, "rows are copied from the model that this one was made from"
        return self._source
