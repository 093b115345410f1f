"""A model's config.json, checked before anything is made from it: kinds of values, and numbers within bounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from specchat.errors import DamagedWeights
from specchat.models.weights.json_file import read_object
from specchat.models.weights.number_limits import is_name, shown, wrong_number

CONFIG = "config.json"
_KINDS_OF_LAYERS = ("full_attention", "sliding_attention")
_ROTATIONS = ("rope_parameters", "rope_scaling")


def read_config(file: Path, named: Path | None = None) -> dict[str, Any]:
    """What the file says of the network that writes text: its own `text_config` before what stands around it.

    Args:
        named: the file that it was made from, for errors.

    Raises:
        WeightsError: it cannot be read, or a value in it is of the wrong kind or out of bounds.
    """
    said = read_object(file)
    inner = said.get("text_config") or {}
    if not isinstance(inner, dict):
        raise DamagedWeights(f"{file}: text_config = {shown(inner)} is not an object")
    text = {**said, **inner}
    if wrong := _wrong_kind(text) or wrong_number(text) or _wrong_rotation(text):
        raise DamagedWeights(f"{named or file}: {wrong}")
    return text


def _is(kind: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, kind)


def _lists(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(fits(entry) for entry in value)


def is_tokens(value: Any) -> bool:
    """Whether this names one token, or several."""
    return all(isinstance(token, int) and token >= 0 for token in (value if isinstance(value, list) else [value]))


_KINDS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "model_type": ("a name", is_name),
    "hidden_act": ("a name", is_name),
    "architectures": ("a list of names", _lists(is_name)),
    "layer_types": ("a list of names", _lists(is_name)),
    "no_rope_layers": ("a list of numbers", _lists(_is(int))),
    "tie_word_embeddings": ("true or false", _is(bool)),
    "use_sliding_window": ("true or false", _is(bool)),
    "rope_parameters": ("an object", _is(dict)),
    "rope_scaling": ("an object", _is(dict)),
    "eos_token_id": ("a token or a list of tokens", is_tokens),
}


def _wrong_kind(text: Mapping[str, Any]) -> str:
    for key, (what, fits) in _KINDS.items():
        value = text.get(key)
        if value is not None and not fits(value):
            return f"{key} = {shown(value)} is not {what}"
    return ""


def _wrong_rotation(text: Mapping[str, Any]) -> str:
    """What is wrong with the rotation by position: one for all layers, or one for each kind of layer."""
    for key in _ROTATIONS:
        about = text.get(key) or {}
        for one in (about, *(inner for inner in about.values() if isinstance(inner, dict))):
            kind = one.get("rope_type")
            if kind is not None and not is_name(kind):
                return f"{key}: rope_type = {shown(kind)} is not a name"
            if wrong := wrong_number(one):
                return f"{key}: {wrong}"
        if wrong := next((kind for kind in _KINDS_OF_LAYERS if not isinstance(about.get(kind, {}), dict)), ""):
            return f"{key}: {wrong} = {shown(about[wrong])} is not an object"
    return ""
