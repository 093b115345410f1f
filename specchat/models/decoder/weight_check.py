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
    for name in ("embed", *(() if shape.tied else ("head",)), "norm"):
        _check(source, shape, name, None)
    for layer in range(shape.layers):
        for name in ("input_norm", "mlp_norm"):
            _check(source, shape, name, layer)
        for norms, demanded in ((_HEAD_NORMS, False), (_POST_NORMS, shape.post_norms)):
            if _all_or_none(source, norms, layer, "weight") or demanded:
                for name in norms:
                    _check(source, shape, name, layer)
        for names in _JOINED:
            for name in names:
                _check(source, shape, name, layer)
            if _all_or_none(source, names, layer, "bias"):
                for name in names:
                    _check(source, shape, name, layer, "bias")


def not_finite(source: WeightSource, name: str, layer: int | None, part: str = "weight") -> DamagedModel:
    """The error for a weight with numbers that are not finite; names the tensor and its file."""
    return DamagedModel(f"{source.about(name, layer, part).label} holds numbers that are not finite")


def _check(source: WeightSource, shape: Shape, name: str, layer: int | None, part: str = "weight") -> None:
    """Refuse one tensor of other sizes. Norms and biases are few numbers: they are read, and must be finite."""
    about, expected = source.about(name, layer, part), _sizes(shape, name)[: 1 if part == "bias" else None]
    if about.sizes is None:
        raise DamagedModel(f"{about.label} is missing")
    if about.sizes != expected:
        raise DamagedModel(
            f"{about.label} has {_written(about.sizes)} weights, its configuration says {_written(expected)}"
        )
    if about.strange:
        raise DamagedModel(f"{about.label} is in format {about.strange}, from which no weights can be read")
    if len(expected) == 1 and not bool(source.dense(name, layer, part).isfinite().all()):
        raise not_finite(source, name, layer, part)


def _sizes(shape: Shape, name: str) -> tuple[int, ...]:
    if name in _HEAD_NORMS:
        return (shape.head_dim,)
    return (shape.hidden,) if name.endswith("norm") else shape.matrix(name)


def _all_or_none(source: WeightSource, names: tuple[str, ...], layer: int, part: str) -> bool:
    there = [source.has(name, layer, part) for name in names]
    if any(there) and not all(there):
        missing = source.about(names[there.index(False)], layer, part)
        raise DamagedModel(f"{missing.label} is missing, which its neighbours have")
    return all(there)


def _written(sizes: tuple[int, ...]) -> str:
    return " × ".join(map(str, sizes)) or "no"
