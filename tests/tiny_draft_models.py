"""Trained draft models of a few kilobytes: folders as a training writes them, with random weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from specchat.config.trained_drafters import WEIGHTS, TrainedDrafter, write_drafter
from specchat.models.draft_heads.draft_language_model import DraftModelSizes
from specchat.models.draft_heads.head import SharedWeights
from specchat.models.draft_heads.loading import new_network, save_weights


def draft_sizes(hidden: int = 32, **changes: Any) -> DraftModelSizes:
    """Two layers as wide as the target, some sizes changed."""
    known: dict[str, Any] = {"layers": 2, "inner": 64, "heads": 4, "kv_heads": 2, "head_dim": 8}
    return DraftModelSizes(hidden, **{**known, **changes})


def draft_folder(
    folder: Path,
    seed: int = 3,
    target_sha256: str = "ab" * 32,
    tokens: range = range(8),
    target: str = "tiny",
    **changes: Any,
) -> TrainedDrafter:
    """A folder of weights that are as large as trained ones, for these tokens; `changes` of `draft_sizes`."""
    folder.mkdir(parents=True)
    made = draft_sizes(**changes)
    shared = SharedWeights(torch.nn.Identity(), torch.tensor(list(tokens)), torch.empty(0))
    network = new_network("draft_model", made, shared, torch.Generator().manual_seed(seed))
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if "norm" in name:
                parameter.uniform_(0.5, 1.5, generator=torch.Generator().manual_seed(seed))
            elif name.endswith((".o", ".down")):
                parameter.mul_(6.0)
    save_weights(network, folder / WEIGHTS)
    return write_drafter(
        folder,
        method="draft_model",
        target=target,
        target_sha256=target_sha256,
        licence="Apache-2.0",
        options=made.options(),
        data={},
        figures={},
    )
