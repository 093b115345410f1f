"""A small model inside a larger shape: the same function at a large model's cost, so that real text can be timed at it.

Nothing that the small model computes changes, and nothing is added to it. Its numbers stand in a corner of larger
matrices. What would write into the rest of a state is zero, so the rest of every state stays exactly zero, and what
would read from there may hold anything. It holds noise: memory full of zeros would be cheaper to read than weights are.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from specchat.errors import ModelError
from specchat.models.decoder.shape import Shape
from specchat.models.weights.families import LLAMA
from specchat.models.weights.weight_source import AdjustedSource, RowChoice, StoredRows, TensorFacts, WeightSource


@dataclass(frozen=True)
class Sizes:
    """The sizes of a decoder; `inner` is the width of its feed-forward layers."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    inner: int

    @classmethod
    def of(cls, config: Any) -> Sizes:
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


_ALL = slice(None)
_UNLAYERED = ("embed", "head", "norm")
_NORMS = ("norm", "input_norm", "mlp_norm")


class WidenedSource(WeightSource):
    """The weights of a small model of the Llama shape as a larger one's.

    Heads keep their group: query head g of key head j stays the g-th of key head j. In a head of m times the size pair
    i of values that rotate together becomes pair i · m, which rotates at the same speed; queries are multiplied by √m,
    since scores are divided by the root of the larger size. Layers beyond the small model's own add nothing.

    Args:
        config, wide: the small model's configuration and `widened_config` of it.
        dtype, device: of the weights handed out; noise is made there.

    Raises:
        ModelError: the small model does not fit in, or normalises its heads.
    """

    def __init__(
        self, source: WeightSource, config: Any, wide: Any, device: torch.device, dtype: torch.dtype = torch.float32
    ) -> None:
        self._small, self._wide = Sizes.of(config), Sizes.of(wide)
        self._source = AdjustedSource(source, head_dim=self._small.head_dim)
        self._shape = Shape.of(wide)
        self._tied = self._shape.tied
        self._like: dict[str, Any] = {"device": device, "dtype": dtype}
        if self._wide.with_room_for(self._small) != self._wide:
            raise ModelError(f"a model of {self._small} does not fit into one of {self._wide}")
        if source.has("q_norm", 0):
            raise ModelError("a model that normalises its heads cannot be widened: its norms would see other means")
        step = self._wide.head_dim // self._small.head_dim
        if not torch.equal(_frequencies(config), _frequencies(wide)[::step]):
            raise ModelError("this rotation by position is not the same in larger heads")

    def stored(self, name: str, layer: int | None = None) -> StoredRows | None:
        return StoredRows.of_tensor(self._matrix(name, layer))

    def dense(self, name: str, layer: int | None = None, part: str = "weight", rows: RowChoice = _ALL) -> Tensor:
        if name in _NORMS:
            return self._norm(name, layer)[rows]
        if part == "bias":
            return self._bias(name, layer)[rows]
        return self._matrix(name, layer)[rows]

    def about(self, name: str, layer: int | None = None, part: str = "weight") -> TensorFacts:
        if not self._source.has(name, None if layer is None else 0, part):
            return TensorFacts(f"the widened {name}", None)
        sizes = (self._wide.hidden,) if name in _NORMS else self._shape.matrix(name)
        return TensorFacts(f"the widened {name}", sizes[:1] if part == "bias" else sizes)

    def embed(self, ids: list[int]) -> Tensor:
        rows = torch.zeros(len(ids), self._wide.hidden)
        rows[:, : self._small.hidden] = self._source.embed(ids)
        return rows

    def let_go(self) -> None:
        self._source.let_go()

    def hub_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Every weight by transformers' own name, one after another; tied heads left out."""
        for name, hub in LLAMA.hub_names.items():
            if name == "head" and self._tied:
                continue
            for layer in (None,) if name in _UNLAYERED else range(self._wide.layers):
                where = "" if layer is None else f"model.layers.{layer}."
                for part in ("weight", "bias"):
                    if self.has(name, layer, part):
                        yield f"{where}{hub}.{part}", self.dense(name, layer, part)

    def _added(self, layer: int | None) -> bool:
        return layer is not None and layer >= self._small.layers

    def _norm(self, name: str, layer: int | None) -> Tensor:
        wide = torch.zeros(self._wide.hidden, **self._like)
        if not self._added(layer):
            narrowed = math.sqrt(self._small.hidden / self._wide.hidden)
            wide[: self._small.hidden] = (self._source.dense(name, layer) * narrowed).to(**self._like)
        return wide

    def _bias(self, name: str, layer: int | None) -> Tensor:
        wide = torch.zeros(self.outputs(name, layer), **self._like)
        if not self._added(layer):
            wide[self._rows(name)] = self._scaled(name, self._source.dense(name, layer, "bias"))
        return wide

    def _matrix(self, name: str, layer: int | None) -> Tensor:
        if name in ("embed", "head"):
            wide = torch.zeros(self._shape.vocab_size, self._wide.hidden, **self._like)
            wide[:, : self._small.hidden] = self._source.dense(name, layer).to(**self._like)
            return wide
        outputs, inputs = self._shape.matrix(name)
        wide = torch.empty(outputs, inputs, **self._like)
        wide.normal_(std=inputs**-0.5, generator=torch.Generator(wide.device).manual_seed(outputs + inputs))
        columns = self._columns(name)
        wide[:, self._filled(name)] = 0.0
        if not self._added(layer):
            rows = self._rows(name)
            wide[rows[:, None], columns] = self._scaled(name, self._source.dense(name, layer))
        return wide

    def _scaled(self, name: str, weight: Tensor) -> Tensor:
        scale = math.sqrt(self._wide.head_dim / self._small.head_dim) if name == "q" else 1.0
        return (weight * scale).to(**self._like)

    def _rows(self, name: str) -> Tensor:
        """Where the small model's outputs go."""
        if name in ("gate", "up"):
            return self._first(self._small.inner)
        if name in ("o", "down"):
            return self._first(self._small.hidden)
        values = self._first(self._small.head_dim) if name == "v" else self._turned()
        heads = self._query_heads() if name == "q" else self._first(self._small.kv_heads)
        return (heads[:, None] * self._wide.head_dim + values).flatten()

    def _columns(self, name: str) -> Tensor:
        """Where the small model's inputs come from."""
        if name == "down":
            return self._first(self._small.inner)
        if name == "o":
            values = self._first(self._small.head_dim)
            return (self._query_heads()[:, None] * self._wide.head_dim + values).flatten()
        return self._first(self._small.hidden)

    def _filled(self, name: str) -> Tensor:
        """Inputs that may hold something. A query head that was added mixes the values of its key head too."""
        if name != "o":
            return self._columns(name)
        heads = self._first(self._small.kv_heads * (self._wide.heads // self._wide.kv_heads))
        return (heads[:, None] * self._wide.head_dim + self._first(self._small.head_dim)).flatten()

    def _query_heads(self) -> Tensor:
        group, wide_group = (size.heads // size.kv_heads for size in (self._small, self._wide))
        heads = self._first(self._small.heads)
        return heads // group * wide_group + heads % group

    def _turned(self) -> Tensor:
        """Places in a wide head of a small head's pairs, which lie side by side there and in halves here."""
        small, wide = self._small.head_dim, self._wide.head_dim
        pairs = self._first(small // 2) * (wide // small)
        return torch.stack([pairs, pairs + wide // 2], dim=1).flatten()

    def _first(self, count: int) -> Tensor:
        return torch.arange(count, device=self._like["device"])


def _frequencies(config: Any) -> Tensor:
    """The rotation of a model whose layers all look at the text in one way."""
    views = Shape.of(config).attention_kinds
    if len(views) != 1 or views[0].frequencies is None or views[0].window is not None:
        raise ModelError("a model whose layers look at the text in different ways cannot be widened")
    return views[0].frequencies
