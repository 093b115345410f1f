"""Strips, the lines that Textual draws, make their caches when they are first used.

Textual makes seven for each strip, which is a seventh of the time of drawing; most strips use one or two.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.segment import Segment
from textual.cache import FIFOCache
from textual.strip import Strip

from specchat.tui.textual_patches import tested

_SIZES = {
    "_divide_cache": 4,
    "_crop_cache": 16,
    "_style_cache": 16,
    "_filter_cache": 4,
    "_line_length_cache": 4,
    "_crop_extend_cache": 4,
    "_offsets_cache": 4,
}


def _begin(self: Strip, segments: Iterable[Segment], cell_length: int | None = None) -> None:
    self._segments = list(segments)
    self._cell_length = cell_length
    self._render_cache = self._link_ids = self._cell_count = None


def _make_cache(self: Strip, name: str) -> FIFOCache[Any, Any]:
    """Called for an attribute that has no value yet."""
    if name not in _SIZES:
        raise AttributeError(name)
    cache: FIFOCache[Any, Any] = FIFOCache(_SIZES[name])
    setattr(self, name, cache)
    return cache


def make_caches_on_demand() -> None:
    """Change the class of Textual's lines, in tested versions."""
    if tested():
        Strip.__init__ = _begin  # type: ignore[method-assign]
        Strip.__getattr__ = _make_cache  # type: ignore[attr-defined]
