"""How each kind of network is trained: its size for a target, and how many texts make a step."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from specchat.models.draft_heads.sizes import (
    AmphistaSizes,
    CloverSizes,
    DraftModelSizes,
    EagleSizes,
    FalconSizes,
    HydraSizes,
    LayerSizes,
    MedusaSizes,
    MtpSizes,
    NetworkSizes,
    ParallelSpecSizes,
    PromptTokenSizes,
)
from specchat.models.inspect.training_cost import EPOCHS, LEAST_TEXTS, MASK_EPOCHS

if TYPE_CHECKING:  # it imports torch, and requests are checked before that is loaded
    from specchat.models.decoder.shape import Shape

HEAD_TOKENS = 8192
"""How many of the target's most frequent tokens can be guessed while training."""

STEPS = 3
"""Tokens that are guessed in a row while training, where deeper guesses use the same network."""

DRAFT_MODEL_LAYERS = 2
"""Each takes about as long as a layer of the target, in every step of a draft."""

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
        glancing: what share of its misses a network that guesses blocks is shown at the beginning; see
            `models.draft_heads.glancing`.
        learning_rate: at its highest, with the fewest texts in a step; it grows with the square root of their number.
        distils: whether it learns at every place of a text by itself, with a loss that can be chosen, and not in chains
            of its own guesses.
        through_target: whether what is trained runs through the target's layers, which takes as long as the target.
        measurements: how often progress is measured in a training that goes through.
        measured_texts: on how many texts at most; they are not learnt from.
    """

    sizes: Callable[[Shape, tuple[int, ...]], NetworkSizes]
    reads_back: bool
    steps: int = STEPS
    glancing: float = 0.0
    epochs: float = EPOCHS
    learning_rate: float = 5e-3
    distils: bool = False
    through_target: bool = False
    measurements: int = 24
    measured_texts: int | None = None

    def rate(self, texts: int, *, further: bool = False) -> float:
        """The highest learning rate with so many texts in a step.

        Args:
            further: whether it begins with the weights of a trained drafter.
        """
        return self.learning_rate * math.sqrt(texts / LEAST_TEXTS) * (FURTHER_RATE if further else 1.0)


def _hydra(shape: Shape, taps: tuple[int, ...]) -> NetworkSizes:
    return HydraSizes(shape.hidden, taps, epsilon=shape.epsilon, inner=_multiple(2 * shape.hidden / 3))


def _medusa(shape: Shape, taps: tuple[int, ...]) -> NetworkSizes:
    return MedusaSizes(shape.hidden, taps, epsilon=shape.epsilon)


def _amphista(shape: Shape, taps: tuple[int, ...]) -> NetworkSizes:
    return _layers(AmphistaSizes, shape, taps, 2 / 3)


def _clover(shape: Shape, taps: tuple[int, ...]) -> NetworkSizes:
    return _layers(CloverSizes, shape, taps, 2 / 3)


def _eagle(shape: Shape, taps: tuple[int, ...]) -> NetworkSizes:
    return _layers(EagleSizes, shape, taps, 8 / 3)


def _falcon(shape: Shape, taps: tuple[int, ...]) -> NetworkSizes:
    return _layers(FalconSizes, shape, taps, 2 / 3)


def _parallel_spec(shape: Shape, taps: tuple[int, ...]) -> NetworkSizes:
    return _layers(ParallelSpecSizes, shape, taps, 8 / 3)


def _layers(sizes: type[LayerSizes], shape: Shape, taps: tuple[int, ...], inner: float) -> NetworkSizes:
    """Attention as the target's, and an MLP so many times as wide as the states."""
    return sizes(
        shape.hidden, taps, epsilon=shape.epsilon, inner=_multiple(inner * shape.hidden),
        heads=shape.heads, kv_heads=shape.kv_heads, head_dim=shape.head_dim,
    )  # fmt: skip


def _draft_model(shape: Shape, taps: tuple[int, ...]) -> NetworkSizes:
    del taps  # it reads tokens alone
    return DraftModelSizes(
        shape.hidden, epsilon=shape.epsilon, layers=DRAFT_MODEL_LAYERS, inner=_multiple(8 * shape.hidden / 3),
        heads=shape.heads, kv_heads=shape.kv_heads, head_dim=shape.head_dim,
    )  # fmt: skip


def _prompt_tokens(shape: Shape, taps: tuple[int, ...]) -> NetworkSizes:
    del taps  # it reads what the target's last layer says of its own rows
    return PromptTokenSizes(shape.hidden, epsilon=shape.epsilon)


def _mtp(shape: Shape, taps: tuple[int, ...]) -> NetworkSizes:
    del taps
    return MtpSizes(
        shape.hidden, epsilon=shape.epsilon, layers=shape.layers,
        queries=shape.heads * shape.head_dim, keys=shape.kv_heads * shape.head_dim,
    )  # fmt: skip


def _multiple(width: float) -> int:
    """The nearest multiple of 32, which is what kernels take together."""
    return max(32, 32 * round(width / 32))


RECIPES: Mapping[str, Recipe] = {
    "hydra": Recipe(_hydra, reads_back=False),
    "eagle": Recipe(_eagle, reads_back=True),
    "medusa": Recipe(_medusa, reads_back=False, steps=4),
    "amphista": Recipe(_amphista, reads_back=True, steps=4),
    "falcon": Recipe(_falcon, reads_back=True, steps=4, glancing=0.4),
    "parallel_spec": Recipe(_parallel_spec, reads_back=True, steps=4),
    "clover": Recipe(_clover, reads_back=True),
    "draft_model": Recipe(_draft_model, reads_back=True, distils=True),
    "prompt_tokens": Recipe(
        _prompt_tokens,
        reads_back=True,
        epochs=MASK_EPOCHS,
        through_target=True,
        measurements=6,
        measured_texts=32,
    ),
    "mtp": Recipe(
        _mtp,
        reads_back=True,
        epochs=MASK_EPOCHS,
        through_target=True,
        measurements=6,
        measured_texts=32,
    ),
}
"""Drafter → its recipe."""
