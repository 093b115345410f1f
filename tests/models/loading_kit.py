"""What tests of loading share: a model from a file, what it says, and what refuses it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from specchat.config import ModelSpec, PathSource
from specchat.core.tree import TokenTree
from specchat.errors import SpecchatError
from specchat.models.model_loading import Loaded, load_model
from specchat.models.shipped_mtp import with_shipped_head


def load(path: Path, kernels: str = "auto", wanted: str = "auto") -> Loaded:
    """The model of a file or folder, on the processor, in the precision that is wanted."""
    spec = ModelSpec("m", (PathSource(path),))
    return with_shipped_head(load_model(spec, path, torch.device("cpu"), wanted, kernels=kernels), path)


def refusal(path: Path, kernels: str = "auto", wanted: str = "auto") -> str:
    """The one line that says why a model is not loaded."""
    with pytest.raises(SpecchatError) as refused:
        load(path, kernels, wanted)
    assert "\n" not in str(refused.value)
    assert refused.value.exit_code == 2, "what the model's files hold is wrong, not the machine"
    return str(refused.value)


def logits_of(loaded: Loaded) -> Tensor:
    """(1, V) what it says after three tokens and a fourth."""
    loaded.model.prefill([5, 6, 7])
    return loaded.model.read(TokenTree(8, loaded.model.vocab_size).freeze()).logits
