"""Weights prepared for a decoder's layers, from any file format."""

from __future__ import annotations

from specchat.errors import DamagedModel
from specchat.models.base.shape import Shape
from specchat.models.base.weight_check import check_weights
from specchat.models.weights.weight_source import PairedSource, ScaledSource, WeightSource


def prepared(source: WeightSource, shape: Shape) -> WeightSource:
    """A source with the values that rotate together in pairs, and a family's factors multiplied in.

    Raises:
        ModelError: a tensor is missing, has other sizes or holds no numbers; names the tensor and its file.
    """
    check_weights(source, shape)
    paired = PairedSource(source, shape.head_dim)
    if shape.embedding_scale == shape.query_scale == 1.0:
        return paired
    if shape.query_scale != 1.0 and not source.has("q_norm", 0):
        raise DamagedModel("queries are scaled by their norm, and the weights have none")
    return ScaledSource(paired, shape.embedding_scale, shape.query_scale)
