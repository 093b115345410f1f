"""Sizes of trained networks: `[options]` of a trained drafter's folder, checked, and the bases that families extend."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from specchat.errors import ConfigError, nearest, short

if TYPE_CHECKING:
    from specchat.models.decoder.shape import Shape

MOST_WIDTH = 1 << 16
MOST_INNER = 1 << 18
MOST_DEPTH = 64
MOST_LAYER = 1 << 10
MOST_RANK = 1 << 10
MOST_ENSEMBLE = 16

LEAST_TEXTS = 4
"""The fewest texts in a step of learning."""


def size(most: int, least: int = 1, default: Any = dataclasses.MISSING) -> Any:
    """A field that holds a whole number within bounds."""
    return dataclasses.field(default=default, metadata={"least": least, "most": most})


@dataclass(frozen=True)
class NetworkSizes:
    """Sizes of any trained network: `hidden`, d, of states, and `epsilon`, added to the mean square in every norm."""

    hidden: int = size(MOST_WIDTH)
    epsilon: float = dataclasses.field(default=1e-5, kw_only=True, metadata={"most": 1.0})

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            _check(field, getattr(self, field.name))

    @classmethod
    def read(cls, options: Mapping[str, Any], where: str) -> Self:
        """The sizes that a file says.

        Raises:
            ConfigError: a key is unknown, missing, or its value out of bounds; `where` names file and table.
        """
        fields = {field.name: field for field in dataclasses.fields(cls)}
        for key in options:
            if key not in fields:
                raise ConfigError(f"{where} has an unknown key {short(key)}{nearest(str(key), fields)}")
        for name, field in fields.items():
            if name not in options and field.default is dataclasses.MISSING:
                raise ConfigError(f"{where} has no {name}")
        given: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in options.items()
        }
        try:
            return cls(**given)
        except ConfigError as wrong:
            raise ConfigError(f"{where}: {wrong}") from None

    def options(self) -> dict[str, Any]:
        """The same as `read` takes them: numbers and lists of numbers."""
        return {
            key: list(value) if isinstance(value, tuple) else value for key, value in dataclasses.asdict(self).items()
        }


@dataclass(frozen=True)
class Sizes(NetworkSizes):
    """Sizes of a network that reads the target's states after the layers `taps`, counted from 0, perhaps the last."""

    taps: tuple[int, ...] = size(MOST_LAYER, least=0)

    @classmethod
    def like_target(cls, shape: Shape, taps: tuple[int, ...]) -> Self:
        """The sizes that are trained for a target of this shape."""
        return cls(shape.hidden, taps, epsilon=shape.epsilon)


@dataclass(frozen=True)
class MlpSizes(Sizes):
    """Sizes of a network with an MLP, which is `inner` wide."""

    inner: int = size(MOST_INNER, default=384)

    @classmethod
    def like_target(cls, shape: Shape, taps: tuple[int, ...]) -> Self:
        return cls(shape.hidden, taps, epsilon=shape.epsilon, inner=multiple_of_32(2 * shape.hidden / 3))


@dataclass(frozen=True, kw_only=True)
class DecoderSizes(NetworkSizes):
    """Sizes of a decoder layer.

    Args:
        inner: width of the MLP.
        heads, kv_heads, head_dim: of the attention.
        theta: base of the rotation's angles.
    """

    inner: int = size(MOST_INNER)
    heads: int = size(1 << 11)
    kv_heads: int = size(1 << 11)
    head_dim: int = size(1 << 11, least=2)
    theta: float = dataclasses.field(default=10000.0, metadata={"most": 1e15})

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.heads % self.kv_heads:
            raise ConfigError(f"heads = {self.heads} is not a multiple of kv_heads = {self.kv_heads}")
        if self.head_dim % 2:
            raise ConfigError(f"head_dim = {self.head_dim} is odd: values rotate in pairs")


@dataclass(frozen=True)
class LayerSizes(DecoderSizes, Sizes):
    """Sizes of a network with decoder layers that reads states of the target."""

    mlp_width: ClassVar[float] = 2 / 3
    """In our own training, in widths of a state."""

    @classmethod
    def like_target(cls, shape: Shape, taps: tuple[int, ...]) -> Self:
        return cls(
            shape.hidden, taps, epsilon=shape.epsilon, inner=multiple_of_32(cls.mlp_width * shape.hidden),
            heads=shape.heads, kv_heads=shape.kv_heads, head_dim=shape.head_dim,
        )  # fmt: skip


def multiple_of_32(width: float) -> int:
    """The nearest multiple of 32, the group that kernels take together."""
    return max(32, 32 * round(width / 32))


def _check(field: dataclasses.Field[Any], value: Any) -> None:
    least, most = field.metadata.get("least"), field.metadata["most"]
    if least is None:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not (number and math.isfinite(value) and 0 < value <= most):
            raise ConfigError(f"{field.name} = {short(value)} is not a number above 0, at most {most:g}")
        return
    numbers, several = value if isinstance(value, tuple) else (value,), str(field.type).startswith("tuple")
    if isinstance(value, tuple) != several or not all(
        type(number) is int and least <= number <= most for number in numbers
    ):
        what = "a list of whole numbers" if several else "a whole number"
        raise ConfigError(f"{field.name} = {short(value)} is not {what} from {least} to {most}")
    if value == field.default:
        return
    if isinstance(value, tuple) and (not value or sorted(set(value)) != list(value) or len(value) > MOST_DEPTH):
        raise ConfigError(f"{field.name} = {short(list(value))} are not ascending layers, one to {MOST_DEPTH} of them")
