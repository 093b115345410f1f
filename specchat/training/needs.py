"""What disk and memory a training takes, reported and checked before it begins."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import torch

from specchat.errors import NotEnoughMemory, TrainingError
from specchat.models.decoder.shape import Shape
from specchat.models.draft_heads.frozen_target import frozen_bytes
from specchat.models.draft_heads.networks import kind_of
from specchat.models.draft_heads.shared_weights import SharedWeights
from specchat.models.draft_heads.sizes import NetworkSizes
from specchat.models.fetch.disk import megabytes
from specchat.models.inspect.training_cost import states_bytes
from specchat.models.machine import available_bytes
from specchat.training.recipes import HEAD_TOKENS, RECIPES

_SPARE_BYTES = 256 << 20
_WORKING_BYTES = 1 << 30
"""A batch, the logits of all its places, and what is kept for the gradient."""


@dataclass(frozen=True)
class Needs:
    """Bytes that a training takes, those that are taken already left out of the disk's.

    Args:
        weights: numbers that are learnt.
    """

    disk_bytes: int
    memory_bytes: int
    weights: int

    def check(self, folder: Path) -> None:
        """Refuse to begin what cannot be finished.

        Raises:
            TrainingError: the disk has less free.
            NotEnoughMemory: the memory has less free.
        """
        need_space(folder, self.disk_bytes, "the states")
        free = available_bytes(torch.device("cpu"))
        if free is not None and self.memory_bytes > free:
            raise NotEnoughMemory(
                f"training needs about {self.memory_bytes / 1e9:.1f} GB of memory and {free / 1e9:.1f} GB are free; "
                "close other programs"
            )


def needs_of(drafter: str, sizes: NetworkSizes, shape: Shape, reply_tokens: int, taps: int, states: Path) -> Needs:
    """What a training takes.

    Args:
        taps: layers of the target whose states are kept, whether this network reads them or not.
        states: where the target's states are kept; what is there need not be written again.
    """
    with torch.device("meta"):
        network = kind_of(drafter).module(sizes, SharedWeights(torch.nn.Identity(), torch.empty(0), torch.empty(0)))
    weights = sum(parameter.numel() for parameter in network.parameters())
    try:
        there = sum(file.lstat().st_size for file in states.iterdir())
    except OSError as error:
        raise TrainingError(f"{states} cannot be read: {error.strerror or error}") from None
    # Weights, gradients and a momentum, then head rows, and embeddings of a few times as many tokens: all float32.
    memory = 12 * weights + 4 * shape.hidden * 4 * HEAD_TOKENS + _WORKING_BYTES
    if RECIPES[drafter].through_target:
        memory += frozen_bytes(shape)
    return Needs(max(0, states_bytes(reply_tokens, taps, shape.hidden) - there), memory, weights)


def need_space(folder: Path, needed_bytes: int, what: str) -> None:
    """Refuse to write what will not fit.

    Raises:
        TrainingError: with what is needed and what is free.
    """
    free = shutil.disk_usage(folder).free
    if free < needed_bytes + _SPARE_BYTES:
        raise TrainingError(
            f"not enough space in {folder}: {what} need {megabytes(needed_bytes)} and {megabytes(_SPARE_BYTES)} must "
            f"stay free, {megabytes(free)} are free; ask for fewer --tokens, or make room"
        )
