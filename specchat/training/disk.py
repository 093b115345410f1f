"""Disk and memory of a training: what it needs, files put in place in one step, and one training at a time."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError

from specchat.config import private_dir
from specchat.config.kept_files import locked, remove_unfinished, replacing, unfinished
from specchat.config.trained_drafters import DESCRIPTION, WEIGHTS
from specchat.errors import NotEnoughMemory, TrainingError, os_errors_as
from specchat.models.decoder.shape import Shape
from specchat.models.draft_heads.head import HEAD_TOKENS, SharedWeights
from specchat.models.draft_heads.loading import family_of
from specchat.models.draft_heads.sizes import NetworkSizes
from specchat.models.hub.disk import megabytes
from specchat.models.machine import available_bytes, fastest_float
from specchat.training.limits import states_bytes
from specchat.training.mask_learning import frozen_bytes


@contextmanager
def writing(file: Path) -> Iterator[Path]:
    """A file to write to, which then takes the place of this one; nothing but the training writes to its folders.

    Raises:
        TrainingError: the disk is full, or cannot be written.
    """
    try:
        with replacing(file, alone=True) as draft:
            yield draft
    except (OSError, SafetensorError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise TrainingError(f"{file} cannot be written: {reason}") from None


@contextmanager
def only_user(folder: Path) -> Iterator[None]:
    """Be the only training that writes to a folder; TrainingError if another does so, or it cannot be written."""
    lock = folder / "lock"
    with ExitStack() as held:
        try:
            held.enter_context(locked(lock, 0))
        except TimeoutError:
            raise TrainingError(f"another training uses {folder} now; wait for its end, or stop it") from None
        except OSError as error:
            raise TrainingError(f"{lock} cannot be written: {error.strerror or error}") from None
        yield


@contextmanager
def drafter_folder(folder: Path) -> Iterator[Path]:
    """A new folder for a drafter's weights and description. At the end both files are moved into `folder`.

    Raises:
        TrainingError: `folder` cannot be written.
    """
    with os_errors_as(TrainingError, f"{folder} cannot be written"):
        remove_unfinished(private_dir(folder.parent))
        with unfinished(folder) as made:
            yield made
            private_dir(folder)
            for name in (WEIGHTS, DESCRIPTION):  # both are on the disk: no other work comes between them
                os.replace(made / name, folder / name)


_SPARE_BYTES = 256 << 20
_WORKING_BYTES = 1 << 30
"""A batch, the logits of all its places, and what is kept for the gradient."""


@dataclass(frozen=True)
class Needs:
    """Bytes that a training takes, less those that are taken on the disk already, and how many numbers are learnt."""

    disk_bytes: int
    memory_bytes: int
    weights: int

    def check(self, folder: Path) -> None:
        """Raise TrainingError or NotEnoughMemory where disk or memory have less free: such is not begun."""
        need_space(folder, self.disk_bytes, "the states")
        free = available_bytes(torch.device("cpu"))
        if free is not None and self.memory_bytes > free:
            raise NotEnoughMemory(
                f"training needs about {self.memory_bytes / 1e9:.1f} GB of memory and {free / 1e9:.1f} GB are free; "
                "close other programs"
            )


def needs_of(drafter: str, sizes: NetworkSizes, shape: Shape, reply_tokens: int, taps: int, states: Path) -> Needs:
    """Disk and memory that a training takes.

    Args:
        taps: layers of the target whose states are kept, whether this network reads them or not.
        states: where the target's states are kept; what is there need not be written again.
    """
    made = family_of(drafter).load()
    with torch.device("meta"):
        network = made(sizes, SharedWeights.none())
    weights = sum(parameter.numel() for parameter in network.parameters())
    with os_errors_as(TrainingError, f"{states} cannot be read"):
        there = sum(file.lstat().st_size for file in states.iterdir())
    # Weights, gradients and a momentum, then head rows, and embeddings of a few times as many tokens: all float32.
    memory = 12 * weights + 4 * shape.hidden * 4 * HEAD_TOKENS + _WORKING_BYTES
    if made.recipe.through_target:
        memory += frozen_bytes(shape, fastest_float(torch.device("cpu")))
    return Needs(max(0, states_bytes(reply_tokens, taps, shape.hidden) - there), memory, weights)


def need_space(folder: Path, needed_bytes: int, what: str) -> None:
    """Raise TrainingError, with what is needed and what is free, where it will not fit."""
    free = shutil.disk_usage(folder).free
    if free < needed_bytes + _SPARE_BYTES:
        raise TrainingError(
            f"not enough space in {folder}: {what} need {megabytes(needed_bytes)} and {megabytes(_SPARE_BYTES)} must "
            f"stay free, {megabytes(free)} are free; ask for fewer --tokens, or make room"
        )
