"""Weights as a decoder's layers take them: compared with its shape before any is packed or multiplied with."""

from __future__ import annotations

from specchat.errors import DamagedModel
from specchat.models.decoder.shape import Shape
from specchat.models.weights.weight_source import AdjustedSource, WeightSource


def prepared(source: WeightSource, shape: Shape) -> WeightSource:
    """A source with the values that rotate together in pairs, and a family's factors multiplied in.

    Raises:
        ModelError: a tensor is missing, has other sizes or holds no numbers; names the tensor and its file.
    """
    check_weights(source, shape)
    if shape.query_scale != 1.0 and not source.has("q_norm", 0):
        raise DamagedModel("queries are scaled by their norm, and the weights have none")
    return AdjustedSource(
        source, head_dim=shape.head_dim, embedding_scale=shape.embedding_scale, query_scale=shape.query_scale
    )


_JOINED = (("q", "k", "v"), ("o",), ("gate", "up"), ("down",))
"""A layer's matrices. Those that are multiplied as one have a bias all, or none has."""

_HEAD_NORMS = ("q_norm", "k_norm")
_POST_NORMS = ("post_attention_norm", "post_mlp_norm")


def check_weights(source: WeightSource, shape: Shape) -> None:
    """Compare every tensor that a decoder of this shape takes with the shape.

    Raises:
        DamagedModel: a tensor is missing, has other sizes or holds no numbers; names the tensor and its file.
    """
    check = _Check(shape, source)
    check.matrix("embed")
    if not shape.tied:
        check.matrix("head")
    check.vector("norm", None, shape.hidden)
    for layer in range(shape.layers):
        check.layer(layer)


def not_finite(source: WeightSource, name: str, layer: int | None, part: str = "weight") -> DamagedModel:
    """The error for a weight with numbers that are not finite; names the tensor and its file."""
    return DamagedModel(f"{source.about(name, layer, part).label} holds numbers that are not finite")


class _Check:
    """One source against one shape."""

    def __init__(self, shape: Shape, source: WeightSource) -> None:
        self._shape = shape
        self._source = source

    def layer(self, layer: int) -> None:
        self.vector("input_norm", layer, self._shape.hidden)
        self.vector("mlp_norm", layer, self._shape.hidden)
        if self._all_or_none(_HEAD_NORMS, layer, "weight"):
            for name in _HEAD_NORMS:
                self.vector(name, layer, self._shape.head_dim)
        if self._all_or_none(_POST_NORMS, layer, "weight") or self._shape.post_norms:
            for name in _POST_NORMS:
                self.vector(name, layer, self._shape.hidden)
        for names in _JOINED:
            for name in names:
                self.matrix(name, layer)
            if self._all_or_none(names, layer, "bias"):
                for name in names:
                    self.vector(name, layer, self._shape.matrix(name)[0], "bias")

    def matrix(self, name: str, layer: int | None = None) -> None:
        self._sizes(name, layer, "weight", self._shape.matrix(name))

    def vector(self, name: str, layer: int | None, size: int, part: str = "weight") -> None:
        """Norms and biases are few numbers: they are read, and must be finite."""
        self._sizes(name, layer, part, (size,))
        if not bool(self._source.dense(name, layer, part).isfinite().all()):
            raise not_finite(self._source, name, layer, part)

    def _sizes(self, name: str, layer: int | None, part: str, expected: tuple[int, ...]) -> None:
        about = self._source.about(name, layer, part)
        if about.sizes is None:
            raise DamagedModel(f"{about.label} is missing")
        if about.sizes != expected:
            raise DamagedModel(
                f"{about.label} has {_written(about.sizes)} weights, its configuration says {_written(expected)}"
            )
        if about.strange:
            raise DamagedModel(f"{about.label} is in format {about.strange}, from which no weights can be read")

    def _all_or_none(self, names: tuple[str, ...], layer: int, part: str) -> bool:
        there = [self._source.has(name, layer, part) for name in names]
        if any(there) and not all(there):
            missing = self._source.about(names[there.index(False)], layer, part)
            raise DamagedModel(f"{missing.label} is missing, which its neighbours have")
        return all(there)


def _written(sizes: tuple[int, ...]) -> str:
    return " × ".join(map(str, sizes)) or "no"
