"""The state of a training on disk: the network, the optimiser, and what was measured so far."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, NotRequired, TypedDict

import msgspec
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from specchat.errors import CheckpointError, cut, short
from specchat.training.files import writing
from specchat.training.optimizer import NetworkOptimizer

_Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]
_Amount = Annotated[float, msgspec.Meta(ge=0, le=1e15)]


class Point(TypedDict):
    """A measurement: after so many tokens, τ and acceptance by depth.

    With `share_of_start` it is not of the weights as they were learnt, but of a mean with those of the start.
    """

    tokens: _Count
    tau: _Amount
    by_depth: list[_Amount]
    share_of_start: NotRequired[_Amount]


@dataclass
class Standing:
    """How far a training is.

    Args:
        batches: learnt from so far.
        tokens: of replies seen so far, repeats included.
        seconds: spent learning.
        best: the highest τ on texts that are never learnt from.
        since_best: measurements since then.
        curve: a point for each measurement.
    """

    batches: _Count = 0
    tokens: _Count = 0
    seconds: _Amount = 0.0
    best: _Amount = 0.0
    since_best: _Count = 0
    curve: list[Point] = field(default_factory=list)


_DAMAGE = (
    OSError, SafetensorError, ValueError, KeyError, TypeError, AttributeError, RuntimeError, msgspec.ValidationError,
)  # fmt: skip
"""What reading a damaged checkpoint raises."""


def save_checkpoint(
    file: Path, network: nn.Module, optimizer: NetworkOptimizer, standing: Standing, about: Mapping[str, Any]
) -> None:
    """Write everything that a training needs to go on, in one step."""
    tensors = {f"network.{name}": tensor for name, tensor in network.state_dict().items()}
    for name, parameter in network.named_parameters():
        for key, value in optimizer.state_of(parameter).items():
            tensors[f"optimizer.{name}.{key}"] = value if isinstance(value, Tensor) else torch.tensor(value)
    said = {"standing": asdict(standing), "about": dict(about)}
    with writing(file) as draft:
        written = {key: tensor.detach().cpu().contiguous() for key, tensor in tensors.items()}
        save_file(written, draft, {"specchat": json.dumps(said)})


def load_checkpoint(file: Path, network: nn.Module, optimizer: NetworkOptimizer, about: Mapping[str, Any]) -> Standing:
    """Put network and optimiser where the checkpoint says.

    Raises:
        CheckpointError: it is damaged, or of another training; names what differs.
    """
    again = "remove it to begin anew, or train under another --name"
    try:
        with safe_open(file, framework="pt") as opened:
            said = json.loads((opened.metadata() or {}).get("specchat", "{}"))
            tensors = {name: opened.get_tensor(name).clone() for name in opened.keys()}  # noqa: SIM118
        for key, value in about.items():
            if said["about"].get(key) != value:
                found = short(said["about"].get(key))
                raise CheckpointError(f"{file} was made with {key} = {found}, not {value}; {again}")
        owned = tuple(f"optimizer.{name}." for name, _ in network.named_parameters())
        if foreign := next((name for name in tensors if not name.startswith(("network.", *owned))), None):
            raise ValueError(f"{short(foreign)} belongs to nothing that learns")
        _load_network(network, _below(tensors, "network."))
        for name, parameter in network.named_parameters():
            state = _below(tensors, f"optimizer.{name}.")
            if state:
                _remember(optimizer, name, parameter, state)
        return msgspec.convert(asdict(Standing(**said["standing"])), Standing)
    except _DAMAGE as error:
        reason = cut(str(error) or type(error).__name__)
        raise CheckpointError(f"{file} is damaged: {reason}; {again}") from None


def _load_network(network: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Raises RuntimeError for other names or shapes, ValueError for other formats and what is not finite."""
    for name, own in network.state_dict().items():
        found = tensors.get(name, own)
        if found.dtype != own.dtype:
            raise ValueError(f"network.{name} is in {found.dtype}, not in {own.dtype}")
        if not bool(found.isfinite().all()):
            raise ValueError(f"network.{name} holds numbers that are not finite")
    network.load_state_dict(tensors)


def _remember(optimizer: NetworkOptimizer, name: str, parameter: Tensor, state: Mapping[str, Tensor]) -> None:
    moved = {key: value if key == "step" else value.to(parameter.device) for key, value in state.items()}
    try:
        optimizer.remember(parameter, moved)
    except ValueError as error:
        raise ValueError(f"optimizer.{name}: {error}") from None


def _below(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
