"""A network as transformers builds it from a model's files, and copies of it with parts left out."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Collection, Sequence
from functools import lru_cache
from pathlib import Path
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn

from specchat.errors import DamagedModel, ModelError
from specchat.models.backends.recurrent_cache import LayerSizes, RecurrentCache
from specchat.models.decoder.network import SubLayers
from specchat.models.weights.foreign_code import one_line
from specchat.models.weights.model_files import describe_model

_PACKED = 16
"""Weights that a number in a file may stand for at most: 2-bit ones, packed into whole numbers of 32 bits."""


def load_network(path: Path, config: Any, dtype: torch.dtype, attention: str = "sdpa") -> Any:
    """The network that a file or folder holds, its weights rounded to `dtype`; ModelError if the files hold another.

    Args:
        attention: transformers' name of the implementation.
    """
    from transformers import AutoModelForCausalLM

    with one_line(f"{path} cannot be used"):
        with torch.device("meta"):
            empty = AutoModelForCausalLM.from_config(config)
        _refuse_size(path, empty)
        how = {"dtype": dtype, "attn_implementation": attention, "output_loading_info": True}
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


def refuse_unknown_states(name: str, network: Any) -> None:
    """Refuse networks whose state cannot be kept for every node of a tree, and those that are built otherwise."""
    decoder = network.get_decoder()
    if not hasattr(decoder, "layers"):
        raise ModelError(f"{name}: the layers of {type(network).__name__} are not where a decoder keeps them")
    unknown = sorted({type(module).__name__ for module in decoder.modules() if _keeps_unknown_state(module)})
    if unknown or (getattr(network, "_is_stateful", False) and not recurrent_layers(network)):
        kind = ", ".join(unknown) or type(network).__name__
        raise ModelError(
            f"{name} keeps recurrent state of a kind ({kind}) that cannot be rewound to before a rejected draft; what "
            "can are gated delta nets, Mamba-2 and short convolutions"
        )


_CONVOLUTION = "causal_conv1d_fn"
_RULES = {
    "torch_chunk_gated_delta_rule": ("num_v_heads", "head_k_dim", "head_v_dim"),
    "mamba2_chunk_scan": ("num_heads", "ssm_state_size", "head_dim"),
}
"""What the recurrent layers of transformers call, and where they say how large their state is."""


def _called(module: Any) -> frozenset[str]:
    """The names of functions and attributes in a module's own forward."""
    return _called_by(type(module).forward)


@lru_cache(maxsize=1024)
def _called_by(forward: Callable[..., Any]) -> frozenset[str]:
    code = getattr(inspect.unwrap(forward), "__code__", None)
    return frozenset() if code is None else frozenset(code.co_names)


def _keeps_unknown_state(module: nn.Module) -> bool:
    called = _called(module)
    return "get_recurrent_state" in called and not (_CONVOLUTION in called and called & _RULES.keys())


def _is_recurrent(module: nn.Module) -> bool:
    return _CONVOLUTION in _called(module)


def recurrent_layers(network: Any) -> dict[int, LayerSizes]:
    """For each layer that keeps a state, its sizes; empty for a network of attention alone."""
    found = {}
    for module in network.get_decoder().modules():
        if _is_recurrent(module):
            rule = next((rule for rule in _RULES if rule in _called(module)), None)
            convolution = module.conv1d if hasattr(module, "conv1d") else module.conv
            heads, keys, values = (int(getattr(module, name)) for name in _RULES[rule]) if rule else (0, 0, 0)
            found[int(module.layer_idx)] = LayerSizes(
                int(convolution.in_channels), int(convolution.kernel_size[0]), heads, keys, values,
                convolution.weight.element_size(),
            )  # fmt: skip
    return found


def attending_layers(network: Any) -> frozenset[int]:
    layers = network.get_decoder().layers
    return frozenset(
        number
        for number, layer in enumerate(layers)
        if any(hasattr(module, "k_proj") and not _is_recurrent(module) for module in layer.modules())
    )


def over_states(network: Any, cache: RecurrentCache) -> Any:
    """The network with recurrent layers that keep their states in this cache, node by node of a tree.

    Its weights are shared, and it stays as it is: a layer is a copy whose forward finds other functions by the names
    of transformers' own.
    """
    return _rebuilt(network, network.get_decoder(), lambda layer, _: _over_states(layer, cache))


def _over_states(module: Any, cache: RecurrentCache) -> Any:
    if _is_recurrent(module):
        forward: Any = inspect.unwrap(type(module).forward)
        names = {**forward.__globals__, **cache.functions(int(module.layer_idx))}
        other = FunctionType(forward.__code__, names, forward.__name__, forward.__defaults__, forward.__closure__)
        other.__kwdefaults__ = forward.__kwdefaults__
        copied = _with(module, {})
        copied.forward = MethodType(other, copied)
        return copied
    others = {
        name: changed for name, one in module.named_children() if (changed := _over_states(one, cache)) is not one
    }
    return _with(module, others) if others else module


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
    return _rebuilt(network, decoder, lambda layer, index: _layer(layer, index, parts))


def _rebuilt(network: Any, decoder: Any, change: Callable[[Any, int], Any]) -> Any:
    changed = _with(
        decoder, {"layers": nn.ModuleList(change(layer, index) for index, layer in enumerate(decoder.layers))}
    )
    for name, module in network.named_children():
        if module is decoder:
            return _with(network, {name: changed})
    raise ModelError(f"no view of {type(network).__name__}: its decoder is not one of its own modules")


_MIXERS = ("self_attn", "linear_attn", "mamba", "conv")
_MLPS = ("mlp", "feed_forward", "shared_mlp", "block_sparse_moe")


def _layer(layer: Any, index: int, parts: SubLayers) -> Any:
    gone: dict[str, nn.Module] = {}
    _leave_out(layer, _MIXERS, index in parts.attention, gone)
    _leave_out(layer, _MLPS, index in parts.mlp, gone)
    return _with(layer, gone) if gone else layer


def _leave_out(layer: Any, names: Sequence[str], stays: bool, gone: dict[str, nn.Module]) -> None:
    if stays:
        return
    there = [name for name in names if name in _names(layer)]
    if not there:
        raise ModelError(f"no view of this network: the layers of kind {type(layer).__name__} have no {names[0]!r}")
    gone |= {name: _AddsNothing(attends=name == "self_attn") for name in there}


def _names(module: Any) -> Collection[str]:
    return {name for name, _ in module.named_children()}


def _with(module: Any, others: dict[str, Any]) -> Any:
    """A shallow copy of a module that has other children under some names."""
    copied = copy.copy(module)
    copied._modules = {**module._modules, **others}
    return copied
