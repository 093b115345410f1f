"""A small model's shape made larger: sizes, and the configuration under which the same function is computed."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, replace
from typing import Any

from specchat.models.decoder.shape import Shape


@dataclass(frozen=True)
class Sizes:
    """What makes a decoder of this shape large or small; `inner` is the width of its feed-forward layers."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    inner: int

    @classmethod
    def of(cls, config: Any) -> Sizes:
        """The sizes of a transformers configuration."""
        shape = Shape.of(config)
        own = (shape.layers, shape.hidden, shape.heads, shape.kv_heads, shape.head_dim)
        return cls(*own, inner=config.intermediate_size)

    def with_room_for(self, small: Sizes) -> Sizes:
        """The least sizes from these up that `small` fits into."""
        kv_heads = max(self.kv_heads, small.kv_heads)
        group = max(self.heads // self.kv_heads, small.heads // small.kv_heads)
        return replace(
            self,
            layers=max(self.layers, small.layers),
            hidden=max(self.hidden, small.hidden),
            heads=kv_heads * group,
            kv_heads=kv_heads,
            head_dim=math.ceil(self.head_dim / small.head_dim) * small.head_dim,
            inner=max(self.inner, small.inner),
        )


def widened_config(config: Any, sizes: Sizes) -> Any:
    """The configuration of the same model in these sizes, from which transformers builds it too.

    RMSNorm divides by the root of mean square + ε. Over D columns of which d are filled the mean is d / D of the
    small one, so with ε · d / D the divisor is exactly √(d / D) of the small one; the weights take that factor back.
    """
    wide = copy.deepcopy(config)
    wide.rms_norm_eps = config.rms_norm_eps * config.hidden_size / sizes.hidden
    wide.num_hidden_layers, wide.hidden_size, wide.intermediate_size = sizes.layers, sizes.hidden, sizes.inner
    wide.num_attention_heads, wide.num_key_value_heads = sizes.heads, sizes.kv_heads
    wide.head_dim = sizes.head_dim
    if getattr(config, "layer_types", None):
        wide.layer_types = [config.layer_types[0]] * sizes.layers
    return wide
