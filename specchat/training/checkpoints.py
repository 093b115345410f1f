"""The state of a training: its optimiser, and the network, the optimiser's memory and the measurements on disk."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, NotRequired, TypedDict

import msgspec
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.overrides import TorchFunctionMode

from specchat.errors import CheckpointError, cut, short
from specchat.models.draft_heads.head import DraftNetwork, below
from specchat.models.draft_heads.sizes import NetworkSizes
from specchat.models.machine import fastest_float
from specchat.training.disk import writing

_WEIGHT_DECAY = 0.05

_REMEMBERED: dict[type[torch.optim.Optimizer], tuple[tuple[str, ...], tuple[str, ...]]] = {
    torch.optim.Muon: (("momentum_buffer",), ()),
    torch.optim.AdamW: (("exp_avg", "exp_avg_sq"), ("step",)),
}
"""State of each optimiser for a parameter: tensors of its shape and single numbers, all in its format."""

_NOT_BELOW_ZERO = ("exp_avg_sq", "step")


class _Float32(TorchFunctionMode):
    """Leaves numbers in float32 that Muon rounds to bfloat16."""

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        return args[0].clone() if func is Tensor.bfloat16 else func(*args, **(kwargs or {}))


class NetworkOptimizer:
    """One optimiser for a network whose numbers are moved by two.

    Muon makes the singular values of a matrix's step equal, so that directions of small gradients are learnt as well.
    Its steps are scaled to be as large as AdamW's, and one learning rate serves both.

    Reference: Jordan et al., Muon: An optimizer for hidden layers in neural networks, 2024; scaled as in Liu et al.,
    Muon is Scalable for LLM Training, arXiv:2502.16982.
    """

    name = "muon"

    def __init__(self, network: DraftNetwork[NetworkSizes], rate: float) -> None:
        parameters = [parameter for parameter in network.parameters() if parameter.requires_grad]
        matrices = [parameter for parameter in parameters if parameter.ndim == 2]
        others = [parameter for parameter in parameters if parameter.ndim != 2]
        self._parts: list[torch.optim.Optimizer] = []
        if matrices:
            scaled: dict[str, Any] = {"weight_decay": _WEIGHT_DECAY, "adjust_lr_fn": "match_rms_adamw"}
            self._parts.append(torch.optim.Muon(matrices, lr=rate, **scaled))
        if others:
            self._parts.append(torch.optim.AdamW(others, lr=rate, betas=(0.9, 0.98), weight_decay=_WEIGHT_DECAY))
        self._narrow = {fastest_float(parameter.device) for parameter in parameters} == {torch.bfloat16}
        self._part_of = {
            parameter: part for part in self._parts for group in part.param_groups for parameter in group["params"]
        }

    def step(self, rate: float) -> None:
        """Move the numbers along their gradients at this learning rate, and forget the gradients."""
        for part in self._parts:
            for group in part.param_groups:
                group["lr"] = rate
            with nullcontext() if self._narrow else _Float32():
                part.step()
            part.zero_grad()

    def state_of(self, parameter: Tensor) -> dict[str, Any]:
        """The optimiser's state of a parameter; empty before the first step."""
        part = self._part_of.get(parameter)
        return {} if part is None else dict(part.state.get(parameter, {}))

    def remember(self, parameter: Tensor, state: Mapping[str, Tensor]) -> None:
        """Go on from what `state_of` said.

        Raises:
            KeyError: it is not a number of this network.
            ValueError: what was said does not belong to this parameter; says what of it.
        """
        part = self._part_of[parameter]
        gradients, counted = _REMEMBERED[type(part)]
        if state.keys() != {*gradients, *counted}:
            raise ValueError(f"it holds {_listed(state)}, not {_listed([*gradients, *counted])}")
        for name, tensor in state.items():
            wanted = tuple(parameter.shape) if name in gradients else ()
            if tuple(tensor.shape) != wanted or tensor.dtype != parameter.dtype:
                raise ValueError(
                    f"{name} has the shape {tuple(tensor.shape)} in {tensor.dtype}, not {wanted} in {parameter.dtype}"
                )
            if not bool(tensor.isfinite().all()):
                raise ValueError(f"{name} holds numbers that are not finite")
            if name in _NOT_BELOW_ZERO and bool((tensor < 0).any()):
                raise ValueError(f"{name} holds numbers below 0")
        part.state[parameter] = dict(state)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))


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
    """How far a training is: what was seen in how many seconds of learning, the best τ on texts that are never learnt
    from, how many measurements ago that was, and a point of the curve for each of them."""

    batches: _Count = 0
    tokens: _Count = 0
    seconds: _Amount = 0.0
    best: _Amount = 0.0
    since_best: _Count = 0
    curve: list[Point] = field(default_factory=list)


_DAMAGE = (
    OSError, SafetensorError, ValueError, KeyError, TypeError, AttributeError, RuntimeError, msgspec.ValidationError,
)  # fmt: skip
"""Errors of reading a damaged checkpoint."""


def save_checkpoint(
    file: Path,
    network: DraftNetwork[NetworkSizes],
    optimizer: NetworkOptimizer,
    standing: Standing,
    about: Mapping[str, Any],
) -> None:
    """Write everything that a training needs to go on, in one step."""
    tensors: dict[str, Tensor] = {f"network.{name}": tensor for name, tensor in network.tensors().items()}
    for name, parameter in network.tensors().items():
        for key, value in optimizer.state_of(parameter).items():
            tensors[f"optimizer.{name}.{key}"] = value if isinstance(value, Tensor) else torch.tensor(value)
    said = {"standing": asdict(standing), "about": dict(about)}
    with writing(file) as draft:
        written = {key: tensor.detach().cpu().contiguous() for key, tensor in tensors.items()}
        save_file(written, draft, {"specchat": json.dumps(said)})


def _difference(key: str, found: object, wanted: object) -> tuple[str, object, object]:
    """What differs, what is there and what is wanted; of two tables their first entry that is not the same."""
    if isinstance(found, dict) and isinstance(wanted, Mapping):
        for name in wanted:
            if found.get(name) != wanted[name]:
                return f"{key}.{name}", found.get(name), wanted[name]
    return key, found, wanted


def load_checkpoint(
    file: Path, network: DraftNetwork[NetworkSizes], optimizer: NetworkOptimizer, about: Mapping[str, Any]
) -> Standing:
    """Put network and optimiser where the checkpoint says; CheckpointError names damage, or what differs."""
    again = "remove it to begin anew, or train under another --name"
    try:
        with safe_open(file, framework="pt") as opened:
            said = json.loads((opened.metadata() or {}).get("specchat", "{}"))
            tensors = {name: opened.get_tensor(name).clone() for name in opened.keys()}  # noqa: SIM118
        for key, value in about.items():
            if said["about"].get(key) != value:
                where, found, wanted = _difference(key, said["about"].get(key), value)
                raise CheckpointError(f"{file} was made with {where} = {cut(str(found))}, not {wanted}; {again}")
        owned = tuple(f"optimizer.{name}." for name in network.tensors())
        if foreign := next((name for name in tensors if not name.startswith(("network.", *owned))), None):
            raise ValueError(f"{short(foreign)} belongs to nothing that learns")
        _load_network(network, below(tensors, "network."))
        for name, parameter in network.tensors().items():
            state = below(tensors, f"optimizer.{name}.")
            if state:
                _remember(optimizer, name, parameter, state)
        return msgspec.convert(asdict(Standing(**said["standing"])), Standing)
    except _DAMAGE as error:
        reason = cut(str(error) or type(error).__name__)
        raise CheckpointError(f"{file} is damaged: {reason}; {again}") from None


def _load_network(network: DraftNetwork[NetworkSizes], tensors: Mapping[str, Tensor]) -> None:
    """Raises RuntimeError for other names or shapes, ValueError for other formats and what is not finite."""
    for name, own in network.tensors().items():
        found = tensors.get(name, own)
        if found.dtype != own.dtype:
            raise ValueError(f"network.{name} is in {found.dtype}, not in {own.dtype}")
        if not bool(found.isfinite().all()):
            raise ValueError(f"network.{name} holds numbers that are not finite")
    network.copy_(tensors)


def _remember(optimizer: NetworkOptimizer, name: str, parameter: Tensor, state: Mapping[str, Tensor]) -> None:
    moved = {key: value if key == "step" else value.to(parameter.device) for key, value in state.items()}
    try:
        optimizer.remember(parameter, moved)
    except ValueError as error:
        raise ValueError(f"optimizer.{name}: {error}") from None
