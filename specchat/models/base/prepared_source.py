"""Weights as a decoder's layers want them, whatever file they come from."""

from __future__ import annotations

from specchat.models.base.shape import Shape
from specchat.models.base.weight_check import compare_weights
from specchat.models.files.weight_source import PairedSource, ScaledSource, WeightSource


def prepared(source: WeightSource, shape: Shape) -> WeightSource:
    """A source with the values that rotate together in pairs, and a family's factors multiplied in.

    Raises:
        ModelError: a weight of it is not what the shape says.
    """
    compare_weights(shape, source)
    paired = PairedSource(source, shape.head_dim)
    if shape.embedding_scale == shape.query_scale == 1.0:
        return paired
    return ScaledSource(paired, shape.embedding_scale, shape.query_scale)
