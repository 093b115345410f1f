"""A transformers network with parts left out: the modules left out are replaced by ones that add nothing."""

from __future__ import annotations

import copy
from collections.abc import Collection
from typing import Any

from torch import Tensor, nn

from specchat.errors import ModelError
from specchat.models.decoder.network import SubLayers


class _AddsNothing(nn.Module):
    """In the place of attention or MLP: what it would add to the states is zero."""

    def __init__(self, attends: bool) -> None:
        super().__init__()
        self._attends = attends

    def forward(self, hidden_states: Tensor, *_: Any, **__: Any) -> Any:
        nothing = hidden_states.new_zeros(hidden_states.shape)
        return (nothing, None) if self._attends else nothing


def without_parts(network: Any, parts: SubLayers) -> Any:
    """The network with only these halves of its layers. Its weights are shared, and it stays as it is.

    Raises:
        ModelError: layers whose attention and MLP have other names than is usual.
    """
    if parts.complete:
        return network
    decoder = network.get_decoder()
    layers = nn.ModuleList(_layer(layer, index, parts) for index, layer in enumerate(decoder.layers))
    thinner = _with(decoder, {"layers": layers})
    for name, module in network.named_children():
        if module is decoder:
            return _with(network, {name: thinner})
    raise ModelError(f"no view of {type(network).__name__}: its decoder is not one of its own modules")


def _layer(layer: Any, index: int, parts: SubLayers) -> Any:
    gone: dict[str, nn.Module] = {}
    _leave_out(layer, "self_attn", index in parts.attention, gone)
    _leave_out(layer, "mlp", index in parts.mlp, gone)
    return _with(layer, gone) if gone else layer


def _leave_out(layer: Any, name: str, stays: bool, gone: dict[str, nn.Module]) -> None:
    if stays:
        return
    if name not in _names(layer):
        raise ModelError(f"no view of this network: the layers of kind {type(layer).__name__} have no {name!r}")
    gone[name] = _AddsNothing(attends=name == "self_attn")


def _names(module: Any) -> Collection[str]:
    return {name for name, _ in module.named_children()}


def _with(module: Any, others: dict[str, Any]) -> Any:
    """A shallow copy of a module that has other children under some names."""
    copied = copy.copy(module)
    copied._modules = {**module._modules, **others}
    return copied
