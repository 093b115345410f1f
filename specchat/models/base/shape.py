"""The shape of a Llama-like decoder, read from a transformers configuration; and whether it is one we can run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from specchat.models.inspect.model_files import FAMILIES

_ROTATIONS = ("default", "linear", "llama3")


@dataclass(frozen=True)
class Shape:
    """Sizes and switches of a decoder.

    Args:
        rotates: for each layer, whether queries and keys are rotated by position (SmolLM3 leaves some alone).
        frequencies: (head_dim / 2,) float32, the rotation's angle per position.
        rotation_scale: factor on the rotated values.
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab_size: int
    epsilon: float
    tied: bool
    rotates: tuple[bool, ...]
    frequencies: Tensor
    rotation_scale: float

    @classmethod
    def of(cls, config: Any) -> Shape:
        """The shape a configuration describes. Call `unsupported` first."""
        layers = config.num_hidden_layers
        frequencies, rotation_scale = _rotation(config)
        without = getattr(config, "no_rope_layers", None)  # SmolLM3: 1 means rotated, in spite of the name
        return cls(
            layers=layers,
            hidden=config.hidden_size,
            heads=config.num_attention_heads,
            kv_heads=config.num_key_value_heads,
            head_dim=_head_dim(config),
            vocab_size=config.vocab_size,
            epsilon=config.rms_norm_eps,
            tied=bool(config.tie_word_embeddings),
            rotates=tuple(bool(flag) for flag in without) if without else (True,) * layers,
            frequencies=frequencies.float(),
            rotation_scale=float(rotation_scale),
        )

    def turns(self, positions: int) -> Tensor:
        """(positions, 1, head_dim / 2) complex64: what rotates a pair of values at each position."""
        angles = torch.arange(positions, dtype=torch.float32)[:, None] * self.frequencies
        return torch.polar(torch.full_like(angles, self.rotation_scale), angles)[:, None]


def _head_dim(config: Any) -> int:
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


def _rotation(config: Any) -> tuple[Tensor, float]:
    """Frequencies and factor as transformers' networks compute them; importing one takes a second and 60 MB."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    about = config.rope_parameters
    if about["rope_type"] != "default":
        frequencies, scale = ROPE_INIT_FUNCTIONS[about["rope_type"]](config)
        return frequencies, scale
    size = _head_dim(config)
    return 1.0 / about["rope_theta"] ** (torch.arange(0, size, 2, dtype=torch.float32) / size), 1.0


def unsupported(config: Any) -> str | None:
    """Why our own decoder cannot run this configuration, or None where it can."""
    if config.model_type not in FAMILIES:
        return f"architecture {config.model_type} is not one of {', '.join(FAMILIES)}"
    if getattr(config, "hidden_act", "silu") != "silu":
        return f"activation {config.hidden_act} is not silu"
    rotation = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    kind = rotation.get("rope_type", "default")
    if kind not in _ROTATIONS:
        return f"rotation {kind} is not one of {', '.join(_ROTATIONS)}"
    if float(rotation.get("partial_rotary_factor", 1.0)) != 1.0:
        return "only a part of each head is rotated"
    return None
