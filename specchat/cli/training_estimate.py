"""What a training in the app would take, told while its dialog is filled in."""

from __future__ import annotations

import shutil
from dataclasses import dataclass

from specchat.config import cache_dir
from specchat.errors import UsageError
from specchat.models.hub.pair_check import place_of
from specchat.models.weights.model_files import describe_model
from specchat.training.limits import (
    refuse_hiding,
    refuse_impossible,
    refuse_replacing_start,
    start_named,
    trainable_target,
    training_cost,
)
from specchat.tui.state.training import TrainingChoices


@dataclass(frozen=True)
class Estimated:
    """Bytes of disk and seconds of one core; and how much of the disk is free."""

    disk_bytes: int
    seconds: float
    free_bytes: int


def estimated(request: TrainingChoices) -> Estimated:
    """What this training would take.

    Raises:
        UsageError: such a training is not possible.
        WeightsError: the target's files cannot be read.
    """
    refuse_impossible(request.drafter, request.prompts, request.tokens, request.hours, request.name)
    refuse_hiding(request.name)
    refuse_replacing_start(request.name, request.start)
    target = trainable_target(request.pair)
    if request.start:
        start_named(request.start, target, request.drafter)
    if (place := place_of(target)) is None:
        raise UsageError(f"{target.name} is not on this machine; `specchat models pull {request.pair}` fetches it")
    described = describe_model(place)
    cost = training_cost(request.drafter, request.tokens, described.parameters, described.hidden)
    folder = next(step for step in (cache_dir(), *cache_dir().parents) if step.exists())
    return Estimated(cost.disk_bytes, cost.seconds, shutil.disk_usage(folder).free)
