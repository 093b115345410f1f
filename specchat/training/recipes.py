"""How each kind of network is trained: its size for a target, and how many texts make a step."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from specchat.models.inspect.training_cost import EPOCHS, LEAST_TEXTS
from specchat.models.learned.sizes import (
    AmphistaSizes,
    CloverSizes,
    EagleSizes,
    HydraSizes,
    LayerSizes,
    MedusaSizes,
    Sizes,
)

if TYPE_CHECKING:  # it imports torch, and requests are checked before that is loaded
    from specchat.models.base.shape import Shape

HEAD_TOKENS = 8192
"""How many of the target's most frequent tokens can be guessed while training."""

STEPS = 3
"""Tokens that are guessed in a row while training, where deeper guesses use the same network."""

FURTHER_RATE = 0.3
"""So much of the learning rate where a training begins with the weights of a drafter. docs/measurements.md has what was
tried."""


@dataclass(frozen=True)
class Recipe:
    """How one kind of network is trained.

    Args:
        sizes: target's shape and tapped layers → the network's sizes.
        reads_back: whether it attends to the text, so that prompts are read too.
        steps: tokens that are guessed in a row while training.
        epochs: how often every text is seen, by default.
        learning_rate: at its highest, with the fewest texts in a step; it grows with the square root of their number.
    """

    sizes: Callable[[Shape, tuple[int, ...]], Sizes]
    reads_back: bool
    steps: int = STEPS
    epochs: float = EPOCHS
    learning_rate: float = 5e-3

    def rate(self, texts: int, *, further: bool = False) -> float:
        """The highest learning rate with so many texts in a step.

        Args:
            further: whether it begins with the weights of a trained drafter.
        """
        return self.learning_rate * math.sqrt(texts / LEAST_TEXTS) * (FURTHER_RATE if further else 1.0)


def _hydra(shape: Shape, taps: tuple[int, ...]) -> Sizes:
    return HydraSizes(shape.hidden, taps, epsilon=shape.epsilon, inner=_multiple(2 * shape.hidden / 3))


def _medusa(shape: Shape, taps: tuple[int, ...]) -> Sizes:
    return MedusaSizes(shape.hidden, taps, epsilon=shape.epsilon)


def _amphista(shape: Shape, taps: tuple[int, ...]) -> Sizes:
    return _layers(AmphistaSizes, shape, taps, 2 / 3)


def _clover(shape: Shape, taps: tuple[int, ...]) -> Sizes:
    return _layers(CloverSizes, shape, taps, 2 / 3)


def _eagle(shape: Shape, taps: tuple[int, ...]) -> Sizes:
    return _layers(EagleSizes, shape, taps, 8 / 3)


def _layers(sizes: type[LayerSizes], shape: Shape, taps: tuple[int, ...], inner: float) -> Sizes:
    """Attention as the target's, and an MLP so many times as wide as the states."""
    return sizes(
        shape.hidden, taps, epsilon=shape.epsilon, inner=_multiple(inner * shape.hidden),
        heads=shape.heads, kv_heads=shape.kv_heads, head_dim=shape.head_dim,
    )  # fmt: skip


def _multiple(width: float) -> int:
    """The nearest multiple of 32, which is what kernels take together."""
    return max(32, 32 * round(width / 32))


RECIPES: Mapping[str, Recipe] = {
    "hydra": Recipe(_hydra, reads_back=False),
    "eagle": Recipe(_eagle, reads_back=True),
    "medusa": Recipe(_medusa, reads_back=False),
    "amphista": Recipe(_amphista, reads_back=True, steps=4),
    "clover": Recipe(_clover, reads_back=True),
}
"""Drafter → its recipe."""
