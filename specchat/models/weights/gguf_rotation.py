"""How a GGUF file changes the rotation of queries and keys besides its base: for contexts longer than first trained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from specchat.models.weights.gguf_header import Header
from specchat.models.weights.number_limits import LIMITS, shown

FACTORS = "rope_freqs.weight"
"""Llama 3's rescaling, as one divisor for each pair of values."""

_OTHER_FACTORS = ("rope_factors_long.weight", "rope_factors_short.weight")


@dataclass(frozen=True)
class RotationScaling:
    """What the angles per position are divided by.

    Args:
        linear: by this everywhere that attention reaches the whole text.
        factors: whether there is a tensor of divisors besides (`FACTORS`).
        refusal: why it cannot be computed, empty where it can.
    """

    linear: float = 1.0
    factors: bool = False
    refusal: str = ""

    @property
    def changes(self) -> bool:
        """Whether anything is divided at all."""
        return self.factors or self.linear != 1.0


def rotation_scaling(header: Header) -> RotationScaling:
    """What a header says of it: `rope.scaling.type` is linear where it is left out, as in llama.cpp."""
    kind: Any = header.about("rope.scaling.type") or "linear"
    factor: Any = header.about("rope.scaling.factor") or 1.0
    names = {tensor.name for tensor in header.tensors}
    if not LIMITS["factor"].accepts(factor):
        return RotationScaling(refusal=f"says rope.scaling.factor = {shown(factor)}, which is not {LIMITS['factor']}")
    if kind not in ("linear", "none"):
        return RotationScaling(refusal=f"says rope.scaling.type = {shown(kind)}; linear and none are known")
    if found := [name for name in _OTHER_FACTORS if name in names]:
        return RotationScaling(refusal=f"rotates by {found[0]}, which depends on the length of the text")
    return RotationScaling(1.0 if kind == "none" else float(factor), FACTORS in names)
