"""A decoder's layers as kernels of one precision, built from a weight source."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from specchat.compiled.machine import native_bfloat16
from specchat.core.device_copy import to_device
from specchat.models.decoder.cuda_linear import (
    CudaInt4Linear,
    CudaInt8Linear,
    GroupedLinear,
    grouped_product,
    int8_pays,
    rebuilt_product,
)
from specchat.models.decoder.linear_layers import (
    DenseLinear,
    Int4Linear,
    Int8Linear,
    Linear,
    PackedLinear,
    Stacked,
    Table,
    int4_works,
    int8_works,
    packed_works,
)
from specchat.models.decoder.shape import Shape
from specchat.models.decoder.weight_check import not_finite, prepared
from specchat.models.weights.grouped_codes import LAYOUTS, ROUNDED, Codes, PackedCodes
from specchat.models.weights.weight_source import FourBit, WeightSource, head_rows


@dataclass(frozen=True)
class Layer:
    """One layer: q, k and v as one product, gate and up as one; norms after attention and MLP where it has them."""

    input_norm: Tensor
    qkv: Linear
    q_norm: Tensor | None
    k_norm: Tensor | None
    o: Linear
    mlp_norm: Tensor
    gate_up: Linear
    down: Linear
    post_attention_norm: Tensor | None
    post_mlp_norm: Tensor | None


@dataclass(frozen=True)
class DecoderWeights:
    """Everything a decoder multiplies with.

    Args:
        precision: float32, bfloat16, int8 or int4.
        embed: token ids → (n, d) rows in the activations' format.
        head_rows: token ids → (n, d) float32 rows of the head with the final norm's factors in them.
        table: (V, d) what `embed` looks them up in, where that lies on the device: the head itself where it is tied.
    """

    shape: Shape
    precision: str
    device: torch.device
    activations: torch.dtype
    embed: Callable[[list[int]], Tensor]
    head_rows: Callable[[list[int]], Tensor]
    layers: tuple[Layer, ...]
    norm: Tensor
    head: Linear
    nbytes: int
    table: Table | None = None


class Builder:
    """Builds the layers of one precision on one device."""

    def __init__(self, shape: Shape, source: WeightSource, precision: str, device: torch.device) -> None:
        self._shape = shape
        self._source = prepared(source, shape)
        self._precision = precision
        self._device = device
        self._on_processor = device.type == "cpu"
        self._replaced: set[str] = set()  # precisions for which this torch has no product
        self._no_kernel = ""  # why weights are not kept in the file's own bits on a device that could
        narrow = not self._on_processor and precision != "float32"
        if precision == "int4" and device.type == "cuda":
            narrow = torch.cuda.is_bf16_supported(including_emulation=False)
        # On a processor float32 activations cost nothing beside the weights, and round less.
        self._activations = torch.bfloat16 if narrow else torch.float32

    @property
    def notes(self) -> tuple[str, ...]:
        """Products that are computed otherwise than asked for, after `build`."""
        replaced = (
            f"slower than it could be: this torch has no {precision} product for this processor, so those weights are "
            f"multiplied in {str(_dense_format()).removeprefix('torch.')}"
            for precision in sorted(self._replaced)
        )
        why = self._no_kernel
        return (*replaced, *([f"slower than it could be: the Triton kernel is not in use: {why}"] if why else []))

    def build(self, say: Callable[[int], None] = lambda layer: None) -> DecoderWeights:
        """All layers; `say` hears which one was built."""
        layers = []
        for index in range(self._shape.layers):
            layers.append(self._layer(index))
            say(index)
        head = self._linear(["embed" if self._shape.tied else "head"], None)
        linears = [head, *(kernel for layer in layers for kernel in (layer.qkv, layer.o, layer.gate_up, layer.down))]
        embed, table = self._embedding(head)
        return DecoderWeights(
            shape=self._shape,
            precision=self._precision,
            device=self._device,
            activations=self._activations,
            embed=embed,
            head_rows=partial(head_rows, self._source, self._shape.tied),
            layers=tuple(layers),
            norm=self._vector("norm", None),
            head=head,
            nbytes=(0 if table is None or table is head else table.nbytes) + sum(kernel.nbytes for kernel in linears),
            table=table,
        )

    def _layer(self, index: int) -> Layer:
        return Layer(
            input_norm=self._vector("input_norm", index),
            qkv=self._linear(["q", "k", "v"], index),
            q_norm=self._maybe_vector("q_norm", index),
            k_norm=self._maybe_vector("k_norm", index),
            o=self._linear(["o"], index),
            mlp_norm=self._vector("mlp_norm", index),
            gate_up=self._linear(["gate", "up"], index),
            down=self._linear(["down"], index),
            post_attention_norm=self._maybe_vector("post_attention_norm", index),
            post_mlp_norm=self._maybe_vector("post_mlp_norm", index),
        )

    def _linear(self, names: Sequence[str], layer: int | None) -> Linear:
        """One product for several weights that share their input."""
        if self._precision != "int4":
            weight = torch.cat([self._source.dense(name, layer) for name in names])
            return self._kernel(weight, self._bias(names, layer), self._precision)
        kept = [self._kept(name, layer) for name in names]
        if any(kept):
            return self._of_kept(list(zip(names, kept, strict=True)), layer)
        groups = [self._four_bit(name, layer) for name in names]
        if None not in groups:
            joined = FourBit.joined([group for group in groups if group is not None])
            return self._four(joined, self._bias(names, layer))
        return _stacked([self._four_or_more(name, layer, group) for name, group in zip(names, groups, strict=True)])

    def _kept(self, name: str, layer: int | None) -> PackedCodes | None:
        """The weight in the file's own bits, where the device multiplies them."""
        if self._device.type != "cuda":
            return None
        stored = self._source.stored(name, layer)
        own = None if stored is None else LAYOUTS.get(stored.kind)
        if self._source.rounds and own is not None and own.bits > 4:
            own = None
        if isinstance(why := grouped_product(self._device, own or ROUNDED), str):
            self._no_kernel = why
            return None
        if own is not None and stored is not None:
            packed = PackedCodes.of_stored(stored, self._device)
        else:
            four = self._source.four_bit(name, layer)
            if four is None:
                return None
            packed = PackedCodes.of(Codes.of_four_bit(four)).to(self._device)
        if not packed.is_finite:
            raise not_finite(self._source, name, layer)
        return packed

    def _of_kept(self, weights: list[tuple[str, PackedCodes | None]], layer: int | None) -> Linear:
        """One product for neighbours of one layout; each of the others as the device multiplies it best."""
        parts: list[Linear] = []
        for layout, some in itertools.groupby(weights, lambda weight: weight[1] and weight[1].layout):
            names, kept = zip(*some, strict=True)
            if layout is None:
                parts += [self._four_or_more(name, layer, self._four_bit(name, layer)) for name in names]
                continue
            multiply = grouped_product(self._device, layout)
            assert not isinstance(multiply, str), "it was tried before weights were packed"
            parts.append(GroupedLinear(PackedCodes.joined(kept), self._bias(names, layer), multiply))
        return _stacked(parts)

    def _four(self, weight: FourBit, bias: Tensor | None) -> Linear:
        return Int4Linear(weight, bias) if self._on_processor else CudaInt4Linear(weight, bias, self._device)

    def _kernel(self, weight: Tensor, bias: Tensor | None, precision: str) -> Linear:
        """On a processor more than 8 bits where torch has no product for them."""
        if precision == "int8" and self._on_processor:
            if int8_works():
                return Int8Linear(weight, bias)
            self._replaced.add("int8")
            return DenseLinear(weight.to(_dense_format()), bias)
        if precision == "int8":
            return CudaInt8Linear(weight, bias, self._device)
        if precision == "bfloat16" and self._on_processor and packed_works():
            return PackedLinear(weight, bias)
        dtype = torch.float32 if precision == "float32" else torch.bfloat16
        return DenseLinear(weight.to(self._device, dtype), bias)

    def _four_or_more(self, name: str, layer: int | None, group: FourBit | None) -> Linear:
        """4 bits where the file has 4; else 8, or 16 on a device that is not faster with 8."""
        bias = self._bias([name], layer)
        if group is not None:
            return self._four(group, bias)
        eight = self._on_processor or int8_pays(self._device)
        return self._kernel(self._source.dense(name, layer), bias, "int8" if eight else "bfloat16")

    def _four_bit(self, name: str, layer: int | None) -> FourBit | None:
        if self._on_processor and not int4_works():
            self._replaced.add("int4")
            return None
        group = self._source.four_bit(name, layer)
        return None if group is None or group.numbers.shape[0] % 16 else group  # what the kernel takes

    def _bias(self, names: Sequence[str], layer: int | None) -> Tensor | None:
        parts = [self._source.dense(name, layer, "bias") for name in names if self._source.has(name, layer, "bias")]
        return torch.cat(parts) if parts else None

    def _maybe_vector(self, name: str, layer: int) -> Tensor | None:
        return self._vector(name, layer) if self._source.has(name, layer) else None

    def _vector(self, name: str, layer: int | None) -> Tensor:
        return self._source.dense(name, layer).to(self._device, self._activations)

    def _embedding(self, head: Linear) -> tuple[Callable[[list[int]], Tensor], Table | None]:
        """Rows looked up in the file's own format where weights are quantised on a processor, else in a table.

        It is the head's where both are one tensor and the head has it in the same format.
        """
        if self._precision in ("int8", "int4") and self._on_processor:
            return self._source.embed, None
        dtype = torch.float32 if self._precision == "float32" else torch.bfloat16
        scale = self._shape.embedding_scale
        table: Table
        if self._shape.tied and isinstance(head, DenseLinear | GroupedLinear | CudaInt4Linear | CudaInt8Linear):
            table = head
        elif self._precision == "int4" and (kept := self._kept("embed", None)) is not None:
            table = GroupedLinear(kept, None, rebuilt_product)
        else:
            table = DenseLinear(self._source.dense("embed").to(self._device, dtype), None)

        def embed(ids: list[int]) -> Tensor:
            rows = table.rows(to_device(torch.tensor(ids, dtype=torch.int64), self._device)).to(self._activations)
            return rows if scale == 1.0 else rows * scale

        return embed, table


def _stacked(parts: Sequence[Linear]) -> Linear:
    return parts[0] if len(parts) == 1 else Stacked(parts)


def _dense_format() -> torch.dtype:
    """The format of weights on a processor that has no product of whole numbers."""
    return torch.bfloat16 if native_bfloat16() else torch.float32
