"""Passes that are one call of the kernels: what C is told of a cache when it changes, and of every pass."""

from __future__ import annotations

import ctypes
import weakref
from array import array

from torch import Tensor

from specchat.models.cpu_kernels.c_structures import CRows, CWholePass
from specchat.models.cpu_kernels.kernels import Kernels
from specchat.models.cpu_kernels.logits_buffer import LogitsBuffer
from specchat.models.cpu_kernels.packing import RowReader
from specchat.models.cpu_kernels.pass_rows import LeftOut, Taps, about_cache, left_out
from specchat.models.decoder.network import Pass
from specchat.models.decoder.shape import Shape


class WholePasses:
    """Embeddings, layers and head over one cache. Tensors that stay are checked when they change, not at every pass."""

    def __init__(self, shape: Shape, like: Tensor, embedding: RowReader) -> None:
        self._shape, self._like = shape, like
        self._whole = CWholePass(embedding=ctypes.addressof(embedding.as_c))  # written anew in every pass
        self._narrowest = min((kind.window for kind in shape.attention_kinds if kind.window), default=None)
        self._about = CRows()
        self._of: tuple[weakref.ref[Tensor] | None, object, object] = None, None, None  # what `_about` tells of
        self._left_out: LeftOut = (None, None)  # what it points to

    def takes(self, running: Pass) -> bool:
        """Whether a pass is one call: no hook runs between layers, and all rows are tokens that see whole paths."""
        plan, watch = running.plan, running.watch
        if running.extra_rows or not plan.nodes or plan.own is not None or (watch is not None and watch.hooked):
            return False
        return self._narrowest is None or plan.start + len(plan.tokens) <= self._narrowest

    def read(self, running: Pass, kernels: Kernels, threads: int, decoder: object, said: LogitsBuffer) -> None:
        """Do a pass that is one call."""
        plan, watch, shape = running.plan, running.watch, self._shape
        rows = len(plan.tokens)
        about = self._about_cache(running, plan.start + rows)
        numbers = array("i", [*plan.tokens, *plan.above])
        taps = None if watch is None else Taps.of(watch.tapped(range(shape.layers)), shape.layers, rows, shape.hidden)
        whole = self._whole
        whole.rows, whole.missing = rows, plan.missing
        whole.start, whole.common, whole.first = plan.start, plan.common, plan.first
        whole.numbers, whole.count = numbers.buffer_info()
        whole.tapped = 0
        if taps is not None:
            whole.tapped, (whole.tap_of, whole.taps) = len(taps.states.layers), taps.addresses
        whole.states = said.states_address
        whole.tokens, whole.named, whole.apart, whole.highest, whole.logits, whole.totals = said.asked
        kernels.read(threads, decoder, about, whole)
        if watch is not None and taps is not None:
            watch.keep(taps.states)

    def _about_cache(self, running: Pass, end: int) -> CRows:
        """What C is told of the cache, with room for so many rows."""
        keys, values = running.cache.room_for(end, self._like)
        known, tables, parts = self._of
        if known is None or known() is not keys or tables is not running.tables or parts is not running.parts:
            self._left_out = left_out(running.parts, running.cache)
            self._about = about_cache(self._shape, keys, values, running.tables, self._left_out)
            # By a weak reference: a cache that grows lets go of the memory that it had.
            self._of = weakref.ref(keys), running.tables, running.parts
        return self._about
