"""Bytes of weights that a recorded pass on a device hands to its operations: those of the file, however many rows.

Everything is on `meta`, so an 8B's sizes take no memory and no time. An operation is counted by its operands: a kernel
that reads one of them again for further rows is not seen.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from specchat.models.decoder import cuda_linear, layer_weights
from specchat.models.decoder.eager import EagerNetwork, fused
from specchat.models.decoder.kv_cache import KVCache, RotationTables
from specchat.models.decoder.layer_weights import Builder, DecoderWeights
from specchat.models.decoder.network import SubLayers
from specchat.models.decoder.shape import Shape
from specchat.models.decoder.static_pass import Inputs, StaticPass
from specchat.models.weights.gguf_header import FORMATS, FOUR_BIT, Kind
from specchat.models.weights.grouped_codes import LAYOUTS, Codes, Levels, PackedCodes
from specchat.models.weights.weight_source import GROUP, FourBit, TensorFacts, WeightSource

META = torch.device("meta")
ROWS = (1, 2, 8, 33, 64, 128, 512)
CONTEXT = 512
MOST = 1.15

Q4_K_M = "Q4_K_M"
FILES = [*(kind.name for kind in LAYOUTS), Q4_K_M]

WITHOUT_THE_KERNEL = {
    name: 16 * about.block / 8 / about.block_bytes
    for name, about in ((kind.name, FORMATS[kind]) for kind in LAYOUTS if kind not in FOUR_BIT)
} | {Q4_K_M: 1.75}
"""Files that torch's own kernels read as more bytes than the file has, and how many times as many: what they do not
multiply becomes bfloat16."""


def kind_of(file: str, name: str) -> Kind:
    """The format of a matrix; of Q4_K_M those that have more bits in every other layer have them in all."""
    if file == Q4_K_M:
        return Kind.Q6_K if name in ("v", "down", "head") else Kind.Q4_K
    return Kind[file]


class Sizes(WeightSource):
    """An 8B's sizes with two layers and an eighth of the vocabulary, in a file's formats."""

    interleaved = True

    def __init__(self, file: str) -> None:
        config = transformers.LlamaConfig(
            hidden_size=4096, num_hidden_layers=2, num_attention_heads=32, num_key_value_heads=8,
            intermediate_size=14336, vocab_size=16032, tie_word_embeddings=False,
        )  # fmt: skip
        self.shape, self.file = Shape.of(config), file

    @property
    def bytes_read(self) -> float:
        """Bytes of the matrices that a pass multiplies with, as they lie in the file."""
        layers = itertools.product(range(self.shape.layers), ("q", "k", "v", "o", "gate", "up", "down"))
        return sum(self._bytes(name) for name in (*(name for _, name in layers), "head"))

    def _bytes(self, name: str) -> float:
        about, (out, inputs) = FORMATS[kind_of(self.file, name)], self.shape.matrix(name)
        return out * inputs / about.block * about.block_bytes

    def stored(self, name: str, layer: int | None = None) -> None:
        return None

    def dense(self, name: str, layer: int | None = None, part: str = "weight", rows: Any = None) -> Tensor:
        if name.endswith("norm"):
            return torch.ones(self.shape.hidden)
        return torch.empty(self.shape.matrix(name), device=META)

    def about(self, name: str, layer: int | None = None, part: str = "weight") -> TensorFacts:
        if part == "bias" or name in ("q_norm", "k_norm", "post_attention_norm", "post_mlp_norm"):
            return TensorFacts(name, None)
        return TensorFacts(name, (self.shape.hidden,) if name.endswith("norm") else self.shape.matrix(name))

    def four_bit(self, name: str, layer: int | None = None) -> FourBit | None:
        if kind_of(self.file, name) not in FOUR_BIT:
            return None
        out, inputs = self.shape.matrix(name)
        levels = (torch.empty(out, inputs // GROUP, device=META) for _ in range(2))
        return FourBit(torch.empty(out, inputs, dtype=torch.uint8, device=META), *levels)

    def kept(self, name: str) -> PackedCodes:
        """The matrix as a device keeps it for the kernel."""
        layout, (out, inputs) = LAYOUTS[kind_of(self.file, name)], self.shape.matrix(name)

        def levels() -> Levels:
            groups = inputs // layout.group
            factors = torch.empty(out, groups // layout.per, dtype=torch.float16, device=META)
            steps = torch.empty(out, groups, dtype=torch.int8, device=META) if layout.per > 1 else None
            return Levels(factors, steps)

        numbers = torch.empty(out, inputs, dtype=torch.uint8, device=META)
        return PackedCodes.of(Codes(layout, numbers, levels(), levels() if layout.minimum else None))


_OPERATION = torch.library.Library("pass_bytes", "FRAGMENT")
_OPERATION.define("product(Tensor x, Tensor[] weight, int outputs) -> Tensor")
_OPERATION.impl("product", lambda x, weight, outputs: x.new_empty(len(x), outputs), "Meta")


def one_kernel(x: Tensor, weight: PackedCodes, bias: Tensor | None) -> Tensor:
    levels = [level for level in (weight.scale, weight.minimum) if level is not None]
    parts = [weight.low, weight.high, *(part for level in levels for part in (level.factors, level.steps))]
    there = [part for part in parts if part is not None]
    return torch.ops.pass_bytes.product(x, there, weight.shape[0])  # type: ignore[no-any-return]


_PICKED = frozenset(("embedding", "index_select", "index", "gather"))
"""Operations that read no more of their first operand than they return."""


class MovedBytes(TorchDispatchMode):
    """Bytes of operands and results, of `weights` and of what is made of them alone, and of all else.

    Args:
        activations: tensors that are neither.
    """

    def __init__(self, activations: list[Tensor]) -> None:
        super().__init__()
        self.weights = self.others = 0
        self._held = list(activations)  # as long as ids count
        self._others = {id(tensor) for tensor in activations}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, operands = func._schema.name.removeprefix("aten::"), [*_tensors(args)]
        if name == "_weight_int4pack_mm":  # torch has its result's size for its own stand-ins of a device alone
            made = args[0].new_empty(len(args[0]), 8 * len(args[1]))
        else:
            made = func(*args, **(kwargs or {}))
        results = [*_tensors((made,))]
        of_others = any(id(operand) in self._others for operand in operands)
        self._held += [*operands, *results]
        if of_others:
            self._others |= {id(result) for result in results}
        if func.is_view or not operands:
            return made
        for place, tensor in enumerate([*operands, *results]):
            size = results[0].nbytes if place == 0 and name in _PICKED else tensor.nbytes
            if id(tensor) in self._others:
                self.others += size
            else:
                self.weights += size
        return made


def _tensors(values: Any) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


@torch.inference_mode()
def moved(weights: DecoderWeights, rows: int) -> MovedBytes:
    """What a recorded pass of so many rows moves, with the head."""
    network, shape = EagerNetwork(weights), weights.shape
    inputs, cache = Inputs(rows, META), KVCache(range(shape.layers), CONTEXT)
    keys, values = cache.room_for(CONTEXT, network.like)
    out = torch.empty(rows, shape.hidden, dtype=torch.bfloat16, device=META)
    tables = RotationTables(shape, META, CONTEXT).until(CONTEXT)
    recorded = StaticPass(
        network, inputs, CONTEXT, tables, keys, values, None, out, {}, fused,
        SubLayers.of_all(shape.layers), cache.place_of,
    )  # fmt: skip
    given = [inputs.tokens, inputs.positions, inputs.places, inputs.common, inputs.window, keys, values, out]
    with MovedBytes(given) as counted:
        recorded.compute()
        network.head(out)
    return counted


@pytest.fixture(params=["kernel", "torch"])
def build(request, monkeypatch):
    """Builds weights for a device that has the kernel, or torch's own alone."""

    def built(file: str) -> tuple[DecoderWeights, float, float]:
        source = Sizes(file)
        if request.param == "kernel":
            monkeypatch.setattr(Builder, "_kept", lambda self, name, layer: source.kept(name))
            monkeypatch.setattr(layer_weights, "grouped_product", lambda device, layout=None: one_kernel)
            allowed = MOST
        else:
            allowed = 1.01 * WITHOUT_THE_KERNEL[file] if file in WITHOUT_THE_KERNEL else MOST
        return Builder(source.shape, source, "int4", META).build(), source.bytes_read, allowed

    return built


@pytest.mark.parametrize("file", FILES)
def test_a_pass_moves_the_files_bytes_once_whatever_its_rows(build, file):
    weights, bytes_read, allowed = build(file)
    factors = [moved(weights, rows).weights / bytes_read for rows in ROWS]
    assert min(factors) > 0.9
    assert max(factors) <= allowed


def test_what_is_not_weights_grows_with_the_rows_and_is_little_for_one(build):
    weights, bytes_read, _ = build("Q4_K")
    one, few, many = (moved(weights, rows) for rows in (1, 128, 512))
    assert one.others <= 0.1 * bytes_read
    assert few.others < many.others <= 4 * few.others


def test_weights_that_are_rebuilt_for_a_pass_are_far_beyond_that(monkeypatch):
    """The control: from 64 rows on, as it once was."""
    monkeypatch.setattr(cuda_linear, "_REBUILT_ROWS", 64)
    source = Sizes("Q4_K")
    weights = Builder(source.shape, source, "int4", META).build()
    factors = {rows: moved(weights, rows).weights / source.bytes_read for rows in (33, 64, 512)}
    assert factors[33] <= MOST
    assert min(factors[64], factors[512]) > 50
