"""JSON files of a model, config.json above all, checked before use: sizes, kinds of values, bounds of numbers."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from specchat.config.file_reading import open_regular
from specchat.errors import DamagedWeights, WeightsError, os_errors_as


@dataclass(frozen=True)
class Whole:
    """A whole number within bounds."""

    least: int
    most: int

    def accepts(self, value: Any) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and self.least <= value <= self.most

    def __str__(self) -> str:
        return f"a whole number from {self.least} to {self.most}"


@dataclass(frozen=True)
class Real:
    """A finite number above zero and within a bound."""

    most: float

    def accepts(self, value: Any) -> bool:
        if not isinstance(value, int | float) or isinstance(value, bool):
            return False
        return 0 < value <= self.most and math.isfinite(value)

    def __str__(self) -> str:
        return f"a number above 0, at most {self.most:g}"


LIMITS: dict[str, Whole | Real] = {
    **dict.fromkeys(("num_hidden_layers", "num_layers", "n_layer"), Whole(1, 1024)),
    **dict.fromkeys(("n_embd", "d_model", "hidden_size"), Whole(1, 1 << 17)),
    "intermediate_size": Whole(1, 1 << 20),
    **dict.fromkeys(("n_head", "num_attention_heads", "num_key_value_heads"), Whole(1, 2048)),
    "head_dim": Whole(2, 2048),
    "vocab_size": Whole(1, 1 << 22),
    **dict.fromkeys(("max_position_embeddings", "original_max_position_embeddings"), Whole(1, 1 << 27)),
    "sliding_window": Whole(0, 1 << 27),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), Whole(0, 4096)),
    **dict.fromkeys(("linear_num_key_heads", "linear_num_value_heads"), Whole(1, 2048)),
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim"), Whole(1, 2048)),
    **dict.fromkeys(("linear_conv_kernel_dim", "mamba_d_conv", "conv_L_cache"), Whole(2, 64)),
    **dict.fromkeys(("mamba_d_state", "ssm_state_size"), Whole(1, 4096)),
    **dict.fromkeys(("mamba_n_heads", "mamba_num_heads", "n_mamba_heads"), Whole(1, 1 << 14)),
    **dict.fromkeys(("mamba_n_groups", "mamba_ngroups"), Whole(1, 2048)),
    "mamba_expand": Whole(1, 64),
    **dict.fromkeys(("rms_norm_eps", "partial_rotary_factor"), Real(1.0)),
    **dict.fromkeys(("rope_local_base_freq", "rope_theta"), Real(1e15)),
    **dict.fromkeys(("factor", "low_freq_factor", "high_freq_factor"), Real(1e6)),
    **dict.fromkeys(("query_pre_attn_scalar", "beta_fast", "beta_slow"), Real(1e6)),
    **dict.fromkeys(("attention_factor", "mscale", "mscale_all_dim"), Real(1e3)),
}
"""By the names of a transformers configuration. The bounds are far beyond any published model's."""

GGUF_NAMES = {
    "block_count": "num_hidden_layers",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.sliding_window": "sliding_window",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "vocab_size": "vocab_size",
    "context_length": "max_position_embeddings",
    "expert_count": "num_experts",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "rope.freq_base": "rope_theta",
}
"""What a GGUF header, under its architecture's name, calls the same."""


def wrong_number(said: Mapping[str, Any]) -> str:
    """What is wrong with the first number that is out of bounds, as `key = value is not …`; empty where none is. What a
    description leaves out, or leaves open (null), is not looked at."""
    for key, limit in LIMITS.items():
        value = said.get(key)
        if value is not None and not limit.accepts(value):
            return f"{key} = {shown(value)} is not {limit}"
    return ""


def is_name(value: Any) -> bool:
    """Whether this can be shown in a line: a short text without control characters; empty for none."""
    return isinstance(value, str) and len(value) <= 100 and value.isprintable()


def shown(value: Any) -> str:
    """A value from a file as an error line shows it: not longer than a few words."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # a number of more digits than Python writes, a list too deep
        text = f"a value of kind {type(value).__name__}"
    return text if len(text) <= 60 else text[:57] + "…"


_MOST_BYTES = 256 << 20
"""Tokenizers of the largest vocabularies have some 35 MB."""


@contextmanager
def opened_file(file: Path) -> Iterator[BinaryIO]:
    """The file, opened to be read. Pipes and devices are refused: a reader would wait for them.

    Raises:
        WeightsError: it cannot be opened, or reading fails.
    """
    with os_errors_as(WeightsError, f"{file} cannot be read"), open_regular(file) as opened:
        yield opened


def read_object(file: Path) -> dict[str, Any]:
    """The object that the file holds; WeightsError if it cannot be read, or is not a JSON object."""
    return parse_object(read_whole(file), str(file))


def read_whole(file: Path) -> bytes:
    """The bytes of the file; WeightsError if it cannot be read, or is larger than any such file."""
    with opened_file(file) as opened:
        data = opened.read(min(os.fstat(opened.fileno()).st_size, _MOST_BYTES) + 1)
    if len(data) > _MOST_BYTES:
        raise DamagedWeights(f"{file} is larger than {_MOST_BYTES >> 20} MB")
    return data


def parse_object(data: bytes, name: str) -> dict[str, Any]:
    """The object that these bytes are the text of; WeightsError, about `name`, if they are not a JSON object."""
    try:
        said = json.loads(data.decode("utf-8"))
    except RecursionError:
        raise DamagedWeights(f"{name} cannot be read: it is nested too deep") from None
    except ValueError as error:  # UnicodeDecodeError and JSONDecodeError are of this kind
        raise DamagedWeights(f"{name} cannot be read: {error}") from None
    if not isinstance(said, dict):
        raise DamagedWeights(f"{name} is not a JSON object")
    return said


CONFIG = "config.json"
_KINDS_OF_LAYERS = ("full_attention", "sliding_attention")
_ROTATIONS = ("rope_parameters", "rope_scaling")


def read_config(file: Path, named: Path | None = None) -> dict[str, Any]:
    """The configuration of the network that writes text: its own `text_config` before what stands around it.

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
    **dict.fromkeys(("model_type", "hidden_act"), ("a name", is_name)),
    **dict.fromkeys(("architectures", "layer_types", "layers_block_type"), ("a list of names", _lists(is_name))),
    "no_rope_layers": ("a list of numbers", _lists(_is(int))),
    **dict.fromkeys(("tie_word_embeddings", "truncate", "use_sliding_window"), ("true or false", _is(bool))),
    **dict.fromkeys(("rope_parameters", "rope_scaling"), ("an object", _is(dict))),
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
