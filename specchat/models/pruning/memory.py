"""What a narrower network takes while it is made and while its units are ranked, from sizes alone."""

from __future__ import annotations

import torch

from specchat.core.drafting_networks import Ranking
from specchat.models.base.shape import Shape
from specchat.models.pruning.taylor import HEAD_ROWS

_FLOAT = 4
"""Bytes of a number while weights are ranked and packed: all of that is done in float32."""


def first_units(shape: Shape) -> Ranking:
    """A ranking that only counts: the first heads and channels come first."""
    return Ranking.of(
        -torch.arange(shape.heads).expand(shape.layers, -1), -torch.arange(shape.inner).expand(shape.layers, -1)
    )


def weights_of(shape: Shape, keeps_table: bool) -> int:
    """How many weights the layers and the head have, and the table of embeddings where it is another and kept."""
    tables = 2 if keeps_table and not shape.tied else 1
    return shape.layers * _layer_weights(shape) + tables * shape.hidden * shape.vocab_size


def making_bytes(shape: Shape, threads: int) -> int:
    """The most while the narrower weights are packed: threads pack a layer each, and pages of the file are read."""
    return threads * _FLOAT * (3 * _largest(shape) + _layer_weights(shape)) + _head_rows_bytes(shape)


def ranking_bytes(shape: Shape, texts: int, tokens: int) -> int:
    """The most while units are ranked by texts of so many tokens: each layer's input is kept, and one is computed."""
    rows = texts * tokens
    inputs = (shape.layers + 2) * rows * shape.hidden
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    attention = 4 * texts * shape.heads * tokens * tokens
    layer = rows * (8 * shape.hidden + 6 * shape.inner + 6 * queries + 6 * keys) + attention + 2 * _layer_weights(shape)
    head = _FLOAT * 3 * rows * HEAD_ROWS + _head_rows_bytes(shape)
    return _FLOAT * inputs + max(_FLOAT * layer, head)


def _layer_weights(shape: Shape) -> int:
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    return shape.hidden * (2 * queries + 2 * keys + 3 * shape.inner)


def _largest(shape: Shape) -> int:
    """Weights of the largest matrix of a layer."""
    return shape.hidden * max(shape.inner, shape.heads * shape.head_dim)


def _head_rows_bytes(shape: Shape) -> int:
    """Rows of the head that are read at once, as they lie and as numbers."""
    return 2 * _FLOAT * HEAD_ROWS * shape.hidden
