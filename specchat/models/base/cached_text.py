"""The text whose rows a model's cache holds: read, borrowed from another model, kept after a round, or dropped."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import torch
from torch import Tensor

from specchat.core.request import PassRequest
from specchat.core.states import HiddenStateSink
from specchat.models.base.cache_rows import Plan, Rows, common_prefix
from specchat.models.base.kv_cache import KVCache
from specchat.models.base.layer_hooks import LayerWatch

RunPass = Callable[[Plan, LayerWatch | None], object]
"""Computes the pass of a plan, and shows the watch, if there is one, the states after the layers it wants."""


class CachedText:
    """Which tokens have rows, and where those rows lie in the cache. Every model has one.

    Args:
        cache: keys and values, moved with the rows; None for a model that computes nothing from them.
        source: of the model that this one was made from: `copy_rows_from` copies its rows.
    """

    def __init__(self, cache: KVCache | None = None, source: CachedText | None = None) -> None:
        self.rows = Rows()
        self._cache = cache
        self._source = source

    def cached(self, tokens: Sequence[int]) -> int:
        """How many leading tokens of these have rows."""
        return common_prefix(self.rows.prefix, tokens)

    @torch.inference_mode()
    def prefill(
        self,
        tokens: Sequence[int],
        on_chunk: Callable[[int, int], None] | None,
        tap: HiddenStateSink | None,
        run: RunPass,
    ) -> None:
        """Hold exactly these tokens: `run` reads those without rows, chunk by chunk; `tap` is given their states."""

        def read(plan: Plan) -> None:
            watch = None if tap is None else LayerWatch(plan, PassRequest(taps=tap.layers))
            run(plan, watch)
            if tap is not None and watch is not None and (states := watch.text_states()) is not None:
                tap.take(states)

        self.rows.read_prefix(tokens, read, on_chunk)

    @torch.inference_mode()
    def copy_rows_from(self, tokens: Sequence[int], positions: Sequence[int]) -> None:
        """Hold copies of the source's rows at these positions of a text, and nothing else of it.

        Rows at the front that were borrowed before and are wanted again are not copied again.
        """
        assert self._source is not None, "rows are borrowed from the model that this one was made from"
        held = self._source.cached(tokens)
        some, rows, each_its_own = self._source.rows.lend(positions, held)
        if self._cache is not None and self._source._cache is not None:
            known = 0 if each_its_own else self.rows.lent(tokens, some)
            self._cache.copy_rows_(self._source._cache, rows, known)
        self.rows.copy_rows_from(tokens[:held], some, each_its_own)

    @torch.inference_mode()
    def copy_rows_by_layer(self, tokens: Sequence[int], positions: Tensor, windowed: Collection[int]) -> None:
        """Hold copies of the source's rows of a text, in each layer those at its own positions.

        Args:
            positions: (layers, n) int64, ascending; all of tokens that the source holds.
            windowed: layers that see a window: what they see depends on positions, so that theirs must be the same.
        """
        assert self._source is not None, "rows are borrowed from the model that this one was made from"
        assert self._cache is not None, "layers have rows"
        assert self._source._cache is not None, "layers have rows"
        assert self._source.rows.whole, "a row of the source is that of its position"
        held = self._source.cached(tokens)
        near = positions[sorted(windowed)] if windowed else positions[:1]
        assert bool((near == near[0]).all()), "layers that see a window hold the same positions"
        assert not positions.numel() or int(positions.max()) < held, "what is borrowed was read"
        for layer in self._cache.place_of:
            self._cache.copy_rows_(self._source._cache, positions[layer].tolist(), layers=(layer,))
        self.rows.copy_rows_from(tokens[:held], near[0].tolist(), each_its_own=True)

    def keep(self, path: Sequence[int]) -> None:
        """End the round: keep the rows of the root and of the path, as far as they were read."""
        start = self.rows.held
        kept = self.rows.keep(path)
        if self._cache is not None:
            self._cache.keep_rows_(start, kept)
