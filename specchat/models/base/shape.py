"""The shape of a decoder that we can run, read from a transformers configuration; and whether it is one."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specchat.errors import ModelError
from specchat.models.weights.families import FAMILIES, Family
from specchat.models.weights.number_limits import LIMITS, shown, wrong_number

_ROTATIONS = ("default", "linear", "llama3")
_GATES = {"silu": "silu", "gelu_pytorch_tanh": "gelu"}
_SOFTCAPS = ("final_logit_softcapping", "attn_logit_softcapping")
_SLIDING, _FULL = "sliding_attention", "full_attention"


@dataclass(frozen=True, eq=False)
class AttentionKind:
    """How the queries of some layers look at the text.

    Args:
        window: how many tokens back they see, themselves included; None for all.
        frequencies: (head_dim / 2,) float32, the rotation's angle per position; None where nothing is rotated.
        rotation_scale: factor on the rotated values.
    """

    window: int | None
    frequencies: Tensor | None
    rotation_scale: float = 1.0

    def divided(self, divisor: Tensor | float) -> AttentionKind:
        """The same with its (head_dim / 2,) angles per position divided, by a number or by one for each angle."""
        return self if self.frequencies is None else replace(self, frequencies=self.frequencies / divisor)

    def contradiction(self, head_dim: int) -> str:
        """What does not go together with heads of this size, empty where all does."""
        if self.window is not None and self.window < 1:
            return f"sliding_window = {self.window}, in which a token does not see itself"
        if self.frequencies is None:
            return ""
        if self.frequencies.shape != (head_dim // 2,):
            return f"head_dim = {head_dim} and a rotation of {2 * len(self.frequencies)} values"
        if not (bool(self.frequencies.isfinite().all()) and math.isfinite(self.rotation_scale)):
            return "a rotation by angles that are not finite"
        return ""

    def rotations(self, end: int, first: int = 0) -> Tensor | None:
        """(end − first, 1, head_dim / 2) complex64: what rotates a pair of values at each position from `first` on."""
        if self.frequencies is None:
            return None
        # By way of whole numbers, so that a position's angles have the same bits wherever the range begins.
        angles = torch.arange(first, end).to(torch.float32)[:, None] * self.frequencies
        return torch.polar(torch.full_like(angles, self.rotation_scale), angles)[:, None]


@dataclass(frozen=True)
class Shape:
    """Sizes and switches of a decoder.

    Args:
        gate: what the gate of the MLP goes through, silu or gelu (by its tanh formula).
        attention_kinds: the different kinds of attention, by window and rotation.
        kind_of: for each layer, the number of its kind of attention.
        embedding_scale: factor on embeddings.
        query_scale: factor on queries before scores are divided by the root of the head size.
        inner: width of the feed-forward layers.
        post_norms: whether what attention and MLP add is normalised too.
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab_size: int
    epsilon: float
    inner: int
    tied: bool
    attention_kinds: tuple[AttentionKind, ...]
    kind_of: tuple[int, ...]
    gate: str = "silu"
    embedding_scale: float = 1.0
    query_scale: float = 1.0
    post_norms: bool = False

    @classmethod
    def of(cls, config: Any) -> Shape:
        """The shape a configuration describes. Call `unsupported` first.

        Raises:
            ModelError: its numbers are out of bounds, or do not go together.
        """
        if wrong := wrong_number({key: getattr(config, key, None) for key in LIMITS}):
            raise ModelError(f"the configuration says {wrong}")
        family = FAMILIES[config.model_type]
        attention_kinds, kind_of = _attention_kinds(config, family)
        head_dim = _head_dim(config)
        shape = cls(
            layers=config.num_hidden_layers,
            hidden=config.hidden_size,
            heads=config.num_attention_heads,
            kv_heads=config.num_key_value_heads,
            head_dim=head_dim,
            vocab_size=config.vocab_size,
            epsilon=config.rms_norm_eps,
            inner=config.intermediate_size,
            tied=bool(config.tie_word_embeddings),
            attention_kinds=attention_kinds,
            kind_of=kind_of,
            gate=_GATES[_activation(config)],
            embedding_scale=config.hidden_size**0.5 if family.scales_embedding else 1.0,
            query_scale=(head_dim / getattr(config, "query_pre_attn_scalar", head_dim)) ** 0.5,
            post_norms="post_attention_norm" in family.hub_names,
        )
        if wrong := shape._contradiction():
            raise ModelError(f"the configuration says {wrong}")
        return shape

    def rotated_slower(self, linear: float, factors: Tensor | None) -> Shape:
        """The same, rotating as a GGUF file says.

        Args:
            linear: what divides the angles of the layers that see the whole text.
            factors: (head_dim / 2,) what divides those of every layer, pair by pair.

        Raises:
            ModelError: factors that do not fit, or that are not finite numbers above zero.
        """
        if factors is not None and not (
            factors.shape == (self.head_dim // 2,) and bool((factors.isfinite() & (factors > 0)).all())
        ):
            raise ModelError(f"its factors of rotation are not {self.head_dim // 2} finite numbers above zero")
        kinds = (kind.divided(linear) if kind.window is None else kind for kind in self.attention_kinds)
        return replace(self, attention_kinds=tuple(k if factors is None else k.divided(factors) for k in kinds))

    def matrix(self, name: str) -> tuple[int, int]:
        """(outputs, inputs) of a weight by our own name: `q`, `down`, `embed`, …"""
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        return {
            "embed": (self.vocab_size, self.hidden),
            "head": (self.vocab_size, self.hidden),
            "q": (queries, self.hidden),
            "k": (keys, self.hidden),
            "v": (keys, self.hidden),
            "o": (self.hidden, queries),
            "gate": (self.inner, self.hidden),
            "up": (self.inner, self.hidden),
            "down": (self.hidden, self.inner),
        }[name]

    def _contradiction(self) -> str:
        """What does not go together, empty where all does."""
        if self.heads % self.kv_heads:
            return (
                f"num_attention_heads = {self.heads}, which is not a multiple of num_key_value_heads = {self.kv_heads}"
            )
        if self.head_dim % 2:
            return f"head_dim = {self.head_dim}, which is odd: values rotate in pairs"
        return next((wrong for kind in self.attention_kinds if (wrong := kind.contradiction(self.head_dim))), "")


@contextmanager
def said_by(file: Path) -> Iterator[None]:
    """An error about a shape begins with the file, or the folder, that says what is wrong.

    Raises:
        ModelError: in place of what was raised inside.
    """
    try:
        yield
    except ModelError as error:
        raise ModelError(f"{file}: {error}") from None


def windows_of(config: Any) -> tuple[int | None, ...]:
    """For each layer of a configuration of one of our families, how many tokens back it sees; None for all."""
    window: int | None = getattr(config, "sliding_window", None) if FAMILIES[config.model_type].windows else None
    kinds = getattr(config, "layer_types", None)
    if kinds:
        return tuple(window if kind == _SLIDING else None for kind in kinds)
    return (window if getattr(config, "use_sliding_window", True) else None,) * int(config.num_hidden_layers)


def _attention_kinds(config: Any, family: Family) -> tuple[tuple[AttentionKind, ...], tuple[int, ...]]:
    """The kinds of attention of a configuration's layers, and which of them each layer has."""
    without = getattr(config, "no_rope_layers", None) or [1] * config.num_hidden_layers  # SmolLM3: 1 means rotated
    per_kind = _FULL in config.rope_parameters
    kinds = config.layer_types if per_kind else [None] * config.num_hidden_layers
    windows, layers = windows_of(config), config.num_hidden_layers
    for name, told in (("no_rope_layers", without), ("layer_types", kinds), ("layer_types", windows)):
        if len(told) != layers:
            raise ModelError(f"the configuration says num_hidden_layers = {layers} and {name} for {len(told)}")
    keys = list(zip(windows, kinds, map(bool, without), strict=True))
    different = list(dict.fromkeys(keys))
    found: list[AttentionKind] = []
    for window, kind, rotates in different:
        frequencies, scale = _rotation(config, kind) if rotates else (None, 1.0)
        found.append(AttentionKind(window, None if frequencies is None else frequencies.float(), float(scale)))
    return tuple(found), tuple(different.index(key) for key in keys)


def _head_dim(config: Any) -> int:
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


def _activation(config: Any) -> str:
    return str(getattr(config, "hidden_activation", None) or getattr(config, "hidden_act", "silu"))


def _rotation(config: Any, kind: str | None) -> tuple[Tensor, float]:
    """Frequencies and factor as transformers' networks compute them; importing one takes a second and 60 MB.

    Args:
        kind: of layer, where each kind has a rotation of its own.
    """
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    about = config.rope_parameters if kind is None else config.rope_parameters[kind]
    if about["rope_type"] != "default":
        which = {} if kind is None else {"layer_type": kind}
        frequencies, scale = ROPE_INIT_FUNCTIONS[about["rope_type"]](config, **which)
        return frequencies, scale
    size = _head_dim(config)
    return 1.0 / about["rope_theta"] ** (torch.arange(0, size, 2, dtype=torch.float32) / size), 1.0


def unsupported(config: Any) -> str | None:
    """Why our own decoder cannot run this configuration, or None where it can."""
    if config.model_type not in FAMILIES:
        return f"architecture {config.model_type} is not one of {', '.join(FAMILIES)}"
    if _activation(config) not in _GATES:
        return f"activation {_activation(config)} is not one of {', '.join(_GATES)}"
    if capped := [name for name in _SOFTCAPS if getattr(config, name, None) is not None]:
        return f"it has {capped[0]}"
    if getattr(config, "use_bidirectional_attention", False):
        return "tokens see those that follow"
    rotation = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    for about in [rotation[kind] for kind in (_FULL, _SLIDING) if kind in rotation] or [rotation]:
        kind = about.get("rope_type", "default")
        if not isinstance(kind, str) or kind not in _ROTATIONS:
            return f"rotation {shown(kind)} is not one of {', '.join(_ROTATIONS)}"
        if float(about.get("partial_rotary_factor", 1.0)) != 1.0:
            return "only a part of each head is rotated"
    return None
