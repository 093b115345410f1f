"""The shape of a decoder that we can run, read from a transformers configuration; and whether it is one."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specchat.errors import DamagedModel
from specchat.models.weights.config_file import LIMITS, shown
from specchat.models.weights.families import FAMILIES, Family

_ROTATIONS = ("default", "linear", "llama3", "yarn")
_GATES = {"silu": "silu", "gelu_pytorch_tanh": "gelu"}
_SOFTCAPS = ("final_logit_softcapping", "attn_logit_softcapping")
_SLIDING, _FULL = "sliding_attention", "full_attention"


@dataclass(frozen=True, eq=False)
class AttentionKind:
    """How the queries of some layers look at the text.

    Args:
        window: how many tokens back they see, themselves included; None for all.
        frequencies: (head_dim / 2,) float32, the rotation's angle per position; None where nothing is rotated.
        scale: factor on every value that is rotated, which YaRN has.
    """

    window: int | None
    frequencies: Tensor | None
    scale: float = 1.0

    def divided(self, divisor: Tensor | float) -> AttentionKind:
        """This kind with its (head_dim / 2,) angles per position divided, by a number or by one for each angle."""
        return self if self.frequencies is None else replace(self, frequencies=self.frequencies / divisor)

    def contradiction(self, head_dim: int) -> str:
        """The contradiction to heads of this size, empty where there is none."""
        if self.window is not None and self.window < 1:
            return f"sliding_window = {self.window}, in which a token does not see itself"
        if self.frequencies is None:
            return ""
        if self.frequencies.shape != (head_dim // 2,):
            return f"head_dim = {head_dim} and a rotation of {2 * len(self.frequencies)} values"
        if not bool(self.frequencies.isfinite().all()):
            return "a rotation by angles that are not finite"
        return ""

    def rotations(self, end: int, first: int = 0) -> Tensor | None:
        """(end − first, 1, head_dim / 2) complex64: the factor on a pair of values at each position from `first` on."""
        if self.frequencies is None:
            return None
        # By way of whole numbers, so that a position's angles have the same bits wherever the range begins.
        angles = torch.arange(first, end).to(torch.float32)[:, None] * self.frequencies
        return torch.polar(torch.full_like(angles, self.scale), angles)[:, None]


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
            DamagedModel: its numbers are out of bounds, or do not go together.
        """
        family = FAMILIES[config.model_type]
        heads, hidden = _whole(config, "num_attention_heads"), _whole(config, "hidden_size")
        head_dim = _head_dim(config)
        attention_kinds, kind_of = _attention_kinds(config, family)
        shape = cls(
            layers=_whole(config, "num_hidden_layers"),
            hidden=hidden,
            heads=heads,
            kv_heads=_whole(config, "num_key_value_heads", heads),
            head_dim=head_dim,
            vocab_size=_whole(config, "vocab_size"),
            epsilon=_number(config, "rms_norm_eps"),
            inner=_whole(config, "intermediate_size"),
            tied=bool(config.tie_word_embeddings),
            attention_kinds=attention_kinds,
            kind_of=kind_of,
            gate=_GATES[_activation(config)],
            embedding_scale=hidden**0.5 if family.scales_embedding else 1.0,
            query_scale=(head_dim / _number(config, "query_pre_attn_scalar", head_dim)) ** 0.5,
            post_norms="post_attention_norm" in family.hub_names,
        )
        if wrong := shape._contradiction():
            raise DamagedModel(f"the configuration says {wrong}")
        return shape

    def rotated_slower(self, linear: float, factors: Tensor | None) -> Shape:
        """This shape, rotating as a GGUF file says.

        Args:
            linear: what divides the angles of the layers that see the whole text.
            factors: (head_dim / 2,) what divides those of every layer, pair by pair.

        Raises:
            DamagedModel: factors that do not fit, or that are not finite numbers above zero.
        """
        if factors is not None and not (
            factors.shape == (self.head_dim // 2,) and bool((factors.isfinite() & (factors > 0)).all())
        ):
            raise DamagedModel(f"its factors of rotation are not {self.head_dim // 2} finite numbers above zero")
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
        """The first contradiction between the numbers, empty where there is none."""
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
        DamagedModel: in place of what was raised inside.
    """
    try:
        yield
    except DamagedModel as error:
        raise DamagedModel(f"{file}: {error}") from None


def windows_of(config: Any) -> tuple[int | None, ...]:
    """For each layer, how many tokens back it sees, None for all; DamagedModel if that is missing or out of bounds."""
    windows = FAMILIES[config.model_type].windows and _said(config, "sliding_window") is not None
    window = _whole(config, "sliding_window") if windows else None
    kinds = _said(config, "layer_types")
    if kinds:
        return tuple(window if kind == _SLIDING else None for kind in kinds)
    slides = getattr(config, "use_sliding_window", True)
    return (window if slides else None,) * _whole(config, "num_hidden_layers")


def _said(about: Any, key: str) -> Any:
    """A value of a configuration, or of an object in it; None where it is left out or null."""
    return about.get(key) if isinstance(about, Mapping) else getattr(about, key, None)


def _number(about: Any, key: str, otherwise: float | None = None) -> float:
    """A number of a configuration, or of an object in it.

    Args:
        otherwise: what it is where it is left out or null.

    Raises:
        DamagedModel: it is out of bounds, or left out and nothing stands for it.
    """
    value = _said(about, key)
    if value is None:
        value = otherwise
    if not LIMITS[key].accepts(value):
        raise DamagedModel(f"the configuration says {key} = {shown(value)} is not {LIMITS[key]}")
    return float(value)


def _whole(about: Any, key: str, otherwise: int | None = None) -> int:
    return int(_number(about, key, otherwise))


def _attention_kinds(config: Any, family: Family) -> tuple[tuple[AttentionKind, ...], tuple[int, ...]]:
    """The kinds of attention of a configuration's layers, and which of them each layer has."""
    layers, windows = _whole(config, "num_hidden_layers"), windows_of(config)
    without = _said(config, "no_rope_layers") or [1] * layers  # SmolLM3: 1 means rotated
    per_kind = _FULL in config.rope_parameters
    kinds = config.layer_types if per_kind else [None] * layers
    for name, told in (("no_rope_layers", without), ("layer_types", kinds), ("layer_types", windows)):
        if len(told) != layers:
            raise DamagedModel(f"the configuration says num_hidden_layers = {layers} and {name} for {len(told)}")
    keys = list(zip(windows, kinds, map(bool, without), strict=True))
    different = list(dict.fromkeys(keys))
    found: list[AttentionKind] = []
    for window, kind, rotates in different:
        about = config.rope_parameters if kind is None else config.rope_parameters[kind]
        scale = _yarn_scale(about, _stretch(config, about)) if rotates and about["rope_type"] == "yarn" else 1.0
        found.append(AttentionKind(window, _frequencies(config, about) if rotates else None, scale))
    return tuple(found), tuple(different.index(key) for key in keys)


def _head_dim(config: Any) -> int:
    return _whole(config, "head_dim", _whole(config, "hidden_size") // _whole(config, "num_attention_heads"))


def _activation(config: Any) -> str:
    return str(getattr(config, "hidden_activation", None) or getattr(config, "hidden_act", "silu"))


def _frequencies(config: Any, about: Mapping[str, Any]) -> Tensor:
    """(head_dim / 2,) float32 angle per position, with the bits of transformers' networks.

    Args:
        about: one object of the configuration's `rope_parameters`.

    Raises:
        DamagedModel: its numbers are missing or out of bounds.
    """
    size, kind = _head_dim(config), about["rope_type"]
    frequencies = 1.0 / _number(about, "rope_theta") ** (torch.arange(0, size, 2, dtype=torch.float32) / size)
    if kind == "default":
        return frequencies
    factor = _stretch(config, about)
    if kind == "yarn":
        return _yarn(config, about, frequencies, factor)
    if kind == "linear":
        return frequencies / factor
    # Llama 3.1: waves longer than the context of the first training are slowed by the factor, short ones are kept.
    low, high = _number(about, "low_freq_factor"), _number(about, "high_freq_factor")
    context = _first_context(config, about)
    waves = 2 * math.pi / frequencies
    slowed = torch.where(waves > context / low, frequencies / factor, frequencies)
    smooth = (context / waves - low) / (high - low)
    between = (1 - smooth) * slowed / factor + smooth * slowed
    medium = ~(waves < context / high) & ~(waves > context / low)
    return torch.where(medium, between, slowed)


def _first_context(config: Any, about: Mapping[str, Any]) -> int:
    """Tokens of the context that the model was trained for before its rotation was changed."""
    return _whole(about, "original_max_position_embeddings", _said(config, "max_position_embeddings"))


def _stretch(config: Any, about: Mapping[str, Any]) -> float:
    """How many times longer the context became; with YaRN it may be left out."""
    longer = None
    if about["rope_type"] == "yarn":
        longer = _whole(config, "max_position_embeddings") / _first_context(config, about)
    return _number(about, "factor", longer)


def _yarn(config: Any, about: Mapping[str, Any], frequencies: Tensor, factor: float) -> Tensor:
    """YaRN (arXiv 2309.00071): angles that turn often within the first context are kept, those that turn less than
    `beta_slow` times are divided by the factor, and between the two one passes into the other.
    """
    pairs, log_base = len(frequencies), math.log(_number(about, "rope_theta"))

    def pair_that_turns(times: float) -> float:
        return pairs * math.log(_first_context(config, about) / (times * 2 * math.pi)) / log_base

    low = pair_that_turns(_number(about, "beta_fast", 32))
    high = pair_that_turns(_number(about, "beta_slow", 1))
    if _said(about, "truncate") is not False:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, 2 * pairs - 1)
    width = high - low if high != low else 0.001
    kept = 1 - torch.clamp((torch.arange(pairs, dtype=torch.float32) - low) / width, 0, 1)
    base = 1 / (
        _number(about, "rope_theta") ** (torch.arange(0, 2 * pairs, 2, dtype=torch.float32) / (2 * pairs)) * factor
    )
    return base * (1 - kept) + frequencies * kept


def _yarn_scale(about: Mapping[str, Any], factor: float) -> float:
    """The factor on rotated values, which keeps attention as sharp in a longer text."""

    def grown(by: float = 1.0) -> float:
        return 0.1 * by * math.log(factor) + 1.0 if factor > 1 else 1.0

    if _said(about, "attention_factor") is not None:
        return _number(about, "attention_factor")
    if _said(about, "mscale") and _said(about, "mscale_all_dim"):
        return grown(_number(about, "mscale")) / grown(_number(about, "mscale_all_dim"))
    return grown()


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
        if _said(about, "partial_rotary_factor") not in (None, 1):
            return "only a part of each head is rotated"
    return None
