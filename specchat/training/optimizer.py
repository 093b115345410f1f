"""The optimiser of a network that learns to draft: Muon for its matrices, AdamW for everything else."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

_WEIGHT_DECAY = 0.05

_REMEMBERED: dict[type[torch.optim.Optimizer], tuple[tuple[str, ...], tuple[str, ...]]] = {
    torch.optim.Muon: (("momentum_buffer",), ()),
    torch.optim.AdamW: (("exp_avg", "exp_avg_sq"), ("step",)),
}
"""What each remembers of a parameter: tensors of its shape, and single numbers, all in the format of the parameter."""

_NOT_BELOW_ZERO = ("exp_avg_sq", "step")


class NetworkOptimizer:
    """One optimiser for a network whose numbers are moved by two.

    Muon makes the singular values of a matrix's step equal, so that directions of small gradients are learnt as well.
    Its steps are scaled to be as large as AdamW's, and one learning rate serves both.

    Reference: Jordan et al., Muon: An optimizer for hidden layers in neural networks, 2024; scaled as in Liu et al.,
    Muon is Scalable for LLM Training, arXiv:2502.16982.
    """

    name = "muon"

    def __init__(self, network: nn.Module, rate: float) -> None:
        parameters = [parameter for parameter in network.parameters() if parameter.requires_grad]
        matrices = [parameter for parameter in parameters if parameter.ndim == 2]
        others = [parameter for parameter in parameters if parameter.ndim != 2]
        self._parts: list[torch.optim.Optimizer] = []
        if matrices:
            scaled: dict[str, Any] = {"weight_decay": _WEIGHT_DECAY, "adjust_lr_fn": "match_rms_adamw"}
            self._parts.append(torch.optim.Muon(matrices, lr=rate, **scaled))
        if others:
            self._parts.append(torch.optim.AdamW(others, lr=rate, betas=(0.9, 0.98), weight_decay=_WEIGHT_DECAY))
        self._part_of = {
            parameter: part for part in self._parts for group in part.param_groups for parameter in group["params"]
        }

    def step(self, rate: float) -> None:
        """Move the numbers along their gradients at this learning rate, and forget the gradients."""
        for part in self._parts:
            for group in part.param_groups:
                group["lr"] = rate
            part.step()
            part.zero_grad()

    def state_of(self, parameter: Tensor) -> dict[str, Any]:
        """What is remembered of its gradients; empty before the first step."""
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
