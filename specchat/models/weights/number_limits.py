"""Which numbers a decoder's description may hold. One table for config.json, for GGUF headers and for `Shape`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


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
    "num_hidden_layers": Whole(1, 1024),
    "num_layers": Whole(1, 1024),
    "n_layer": Whole(1, 1024),
    "n_embd": Whole(1, 1 << 17),
    "n_head": Whole(1, 2048),
    "d_model": Whole(1, 1 << 17),
    "hidden_size": Whole(1, 1 << 17),
    "intermediate_size": Whole(1, 1 << 20),
    "num_attention_heads": Whole(1, 2048),
    "num_key_value_heads": Whole(1, 2048),
    "head_dim": Whole(2, 2048),
    "vocab_size": Whole(1, 1 << 22),
    "max_position_embeddings": Whole(1, 1 << 27),
    "sliding_window": Whole(0, 1 << 27),
    "num_experts": Whole(0, 4096),
    "num_local_experts": Whole(0, 4096),
    "n_routed_experts": Whole(0, 4096),
    "rms_norm_eps": Real(1.0),
    "query_pre_attn_scalar": Real(1e6),
    "rope_local_base_freq": Real(1e15),
    "rope_theta": Real(1e15),
    "partial_rotary_factor": Real(1.0),
    "factor": Real(1e6),
    "low_freq_factor": Real(1e6),
    "high_freq_factor": Real(1e6),
    "original_max_position_embeddings": Whole(1, 1 << 27),
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
    """What is wrong with the first number that is out of bounds, as `key = value is not …`; empty where none is.

    What a description leaves out, or leaves open (null), is not looked at.
    """
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
