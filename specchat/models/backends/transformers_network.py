"""A network as transformers builds it from a model's files, and copies of it with parts left out."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from specchat.errors import DamagedModel, ModelError
from specchat.models.decoder.network import SubLayers
from specchat.models.weights.foreign_code import one_line
from specchat.models.weights.model_files import describe_model

_PACKED = 16
"""Weights that a number in a file may stand for at most: 2-bit ones, packed into whole numbers of 32 bits."""


def load_network(path: Path, config: Any, dtype: torch.dtype) -> Any:
    """The network that a file or folder holds, its weights rounded to `dtype`; ModelError if the files hold another."""
    from transformers import AutoModelForCausalLM

    with one_line(f"{path} cannot be used"):
        with torch.device("meta"):
            empty = AutoModelForCausalLM.from_config(config)
        _refuse_size(path, empty)
        how = {"dtype": dtype, "attn_implementation": "sdpa", "output_loading_info": True}
        if path.is_file():
            state = _gguf_state(path, empty, dtype)
            network, loaded = type(empty).from_pretrained(None, config=empty.config, state_dict=state, **how)
        else:
            how |= {"use_safetensors": True, "local_files_only": True, "trust_remote_code": False}
            network, loaded = AutoModelForCausalLM.from_pretrained(path, **how)
    if missing := [*loaded["missing_keys"], *loaded["mismatched_keys"]]:
        raise DamagedModel(
            f"{path} does not hold {len(missing)} of the network's weights, such as {min(map(str, missing))}"
        )
    return network


def _refuse_size(path: Path, empty: Any) -> None:
    """Refuse before memory is taken for weights that the files do not have."""
    described, held = sum(weight.numel() for weight in empty.parameters()), describe_model(path).parameters
    if described > held * _PACKED:
        raise DamagedModel(f"{path} describes a network of {described} weights and holds {held}")


def _gguf_state(path: Path, empty: Any, dtype: torch.dtype) -> Any:
    """Every tensor of a GGUF file, dequantised, by transformers' names."""
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    arguments: dict[str, Any] = {"return_tensors": True, "model_to_load": empty}
    if "torch_dtype" in inspect.signature(load_gguf_checkpoint).parameters:
        arguments["torch_dtype"] = dtype  # rounds tensor by tensor, which keeps the peak low
    return load_gguf_checkpoint(str(path), **arguments)["tensors"]


def refuse_stateful(name: str, network: Any) -> None:
    """Refuse networks that keep recurrent state, whatever their configuration calls it."""
    if getattr(network, "_is_stateful", False):
        raise ModelError(f"{name} keeps recurrent state that cannot be rewound to before a rejected draft")
    if not hasattr(network.get_decoder(), "layers"):
        raise ModelError(f"{name}: the layers of {type(network).__name__} are not where a decoder keeps them")


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
