"""One Triton kernel: rows of activations times weights that are kept as codes of 4, 5, 6 or 8 bits.

Imported only where Triton is installed and a CUDA device is asked for.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from specchat.models.weights.grouped_codes import Layout, Levels, PackedCodes

OUTPUTS = 64
"""Outputs of one program."""
_PROGRAMS = 512
"""So many programs are wanted where rows are few: fewer do not keep the memory busy."""


@triton.jit
def _values(codes, OFFSET: tl.constexpr, TABLE: tl.constexpr):
    """What codes stand for, in float32. Numbers of 8 bits become floats as the last bits of 2 ** 23."""
    if TABLE:  # IQ4_VALUES, a byte each: eight below zero without their sign, and eight above
        place = (codes & 7).to(tl.int64) * 8
        low = (tl.full([], 0x0A1623314153687F, tl.int64) >> place) & 255
        high = (tl.full([], 0x7159453526190D01, tl.int64) >> place) & 255
        number = tl.where(codes < 8, -low, high).to(tl.int32)
        return number.to(tl.float32)
    return (codes.to(tl.int32) | 0x4B000000).to(tl.float32, bitcast=True) - (8388608 + OFFSET)


@triton.jit
def _levels(factors, steps, output, group, groups, PER: tl.constexpr):
    """(outputs, groups) float32 of these groups, to be multiplied with (outputs, groups, 16)."""
    if PER == 1:
        found = tl.load(factors + output * groups + group).to(tl.float32)
    else:
        factor = tl.load(factors + output * (groups // PER) + group // PER).to(tl.float32)
        found = factor * tl.load(steps + output * groups + group).to(tl.float32)
    return found[:, :, None]


@triton.jit(do_not_specialize=["rows", "steps"])
def multiply(
    x, low, high, scale, scale_steps, minimum, minimum_steps, bias, out,
    rows, outputs, inputs, steps,
    BITS: tl.constexpr, GROUP: tl.constexpr, PER: tl.constexpr, OFFSET: tl.constexpr, MINIMUM: tl.constexpr,
    TABLE: tl.constexpr, BIAS: tl.constexpr, ROWS: tl.constexpr, OUTPUTS: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """out (splits, rows, outputs) = x (rows, inputs) @ weights.T, each split over `steps` times 32 · BLOCKS inputs.

    The bias is added where there is one split. Weights are multiplied in the format of x and summed in float32.
    """
    at_output = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    at_row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    output = tl.minimum(at_output, outputs - 1).to(tl.int64)[:, None]
    row = tl.minimum(at_row, rows - 1)[None, :]
    first = tl.program_id(2) * steps
    pair_of_block = tl.arange(0, 16)
    half = tl.arange(0, BLOCKS * 16)
    total = tl.zeros((OUTPUTS, ROWS), dtype=tl.float32)
    for step in range(first, tl.minimum(first + steps, inputs // (32 * BLOCKS))):
        block = step * BLOCKS + tl.arange(0, BLOCKS)
        pair = (block[:, None] * 16 + pair_of_block[None, :])[None, :, :]
        if BITS == 8:
            place = low + output[:, :, None] * inputs + (pair + block[None, :, None] * 16)
            first_codes, second_codes = tl.load(place), tl.load(place + 16)
        else:
            both = tl.load(low + output[:, :, None] * (inputs // 2) + pair)
            first_codes, second_codes = both & 15, both >> 4
        if BITS == 5:
            fifth = tl.load(high + output[:, :, None] * (inputs // 8) + pair // 4) >> (pair % 4 * 2).to(tl.uint8)
            first_codes, second_codes = first_codes | (fifth & 1) << 4, second_codes | (fifth & 2) << 3
        if BITS == 6:
            more = tl.load(high + output[:, :, None] * (inputs // 4) + pair // 2) >> (pair % 2 * 4).to(tl.uint8)
            first_codes, second_codes = first_codes | (more & 3) << 4, second_codes | (more & 12) << 2
        group = block[None, :] * (32 // GROUP)
        groups = inputs // GROUP
        first_scale = _levels(scale, scale_steps, output, group, groups, PER)
        second_scale = _levels(scale, scale_steps, output, group + 1, groups, PER) if GROUP == 16 else first_scale
        first_weights = _values(first_codes, OFFSET, TABLE) * first_scale
        second_weights = _values(second_codes, OFFSET, TABLE) * second_scale
        if MINIMUM:
            least = _levels(minimum, minimum_steps, output, group, groups, PER)
            first_weights += least
            second_weights += least
        place_in_row = step * (32 * BLOCKS) + half // 16 * 32 + half % 16
        at_x = x + row * inputs + place_in_row[:, None]
        kind: tl.constexpr = x.dtype.element_ty
        narrow = tl.reshape(first_weights, (OUTPUTS, BLOCKS * 16)).to(kind)
        total = tl.dot(narrow, tl.load(at_x), total, input_precision="ieee")
        narrow = tl.reshape(second_weights, (OUTPUTS, BLOCKS * 16)).to(kind)
        total = tl.dot(narrow, tl.load(at_x + 16), total, input_precision="ieee")
    if BIAS:
        total += tl.load(bias + output).to(tl.float32)
    place = out + tl.program_id(2).to(tl.int64) * rows * outputs + at_row[None, :] * outputs + at_output[:, None]
    inside = (at_output < outputs)[:, None] & (at_row < rows)[None, :]
    tl.store(place, total.to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["count", "splits"])
def add_up(parts, bias, out, count, outputs, splits, BIAS: tl.constexpr, SIZE: tl.constexpr):
    """out (rows, outputs) = the sum of parts (splits, rows, outputs), and the bias; count = rows · outputs."""
    place = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    inside = place < count
    total = tl.zeros((SIZE,), dtype=tl.float32)
    for split in range(splits):
        total += tl.load(parts + split * count.to(tl.int64) + place, mask=inside, other=0.0)
    if BIAS:
        total += tl.load(bias + place % outputs, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + place, total.to(out.dtype.element_ty), mask=inside)


_NARROW, _WIDE = 16, 128
_ADDED = 1024


def tile(rows: int, inputs: int, dtype: torch.dtype) -> dict[str, int]:
    """The rows and the blocks of 32 inputs of one step, and how it is compiled. float32 takes twice the registers."""
    most = _WIDE if dtype.itemsize == 2 else 2 * _NARROW
    taken = min(max(_NARROW, triton.next_power_of_2(rows)), most)
    blocks = next(
        blocks
        for blocks in ((4, 2, 1) if taken <= 64 and dtype.itemsize == 2 else (2, 1))
        if inputs % (32 * blocks) == 0
    )
    return {"ROWS": taken, "OUTPUTS": OUTPUTS, "BLOCKS": blocks, "num_warps": 4, "num_stages": 3}


def constants(layout: Layout) -> dict[str, int | bool]:
    """What the kernel is compiled for."""
    return {
        "BITS": layout.bits, "GROUP": layout.group, "PER": layout.per, "OFFSET": layout.offset,
        "MINIMUM": layout.minimum, "TABLE": layout.table,
    }  # fmt: skip


def product(x: Tensor, weight: PackedCodes, bias: Tensor | None) -> Tensor:
    """(rows, out) in the format of x, which is (rows, in) without gaps on the weights' device."""
    rows, (outputs, inputs) = len(x), weight.shape
    how = tile(rows, inputs, x.dtype)
    steps = inputs // (32 * how["BLOCKS"])
    programs = triton.cdiv(outputs, OUTPUTS)
    splits = max(1, min(steps // 4, _PROGRAMS // programs)) if rows <= _WIDE else 1
    steps_each = triton.cdiv(steps, splits)
    splits = triton.cdiv(steps, steps_each)
    out = torch.empty(rows, outputs, dtype=x.dtype, device=x.device)
    parts = out if splits == 1 else torch.empty(splits, rows, outputs, dtype=torch.float32, device=x.device)
    unused = weight.low
    with torch.cuda.device_of(x):  # type: ignore[no-untyped-call]  # Triton launches on the current device
        multiply[programs, triton.cdiv(rows, how["ROWS"]), splits](
            x, weight.low, unused if weight.high is None else weight.high, *_pointers(weight.scale, unused),
            *((unused, unused) if weight.minimum is None else _pointers(weight.minimum, unused)),
            unused if bias is None else bias, parts, rows, outputs, inputs, steps_each,
            **constants(weight.layout), **how, BIAS=bias is not None and splits == 1,
        )  # fmt: skip
        if splits > 1:
            add_up[(triton.cdiv(rows * outputs, _ADDED),)](
                *(parts, unused if bias is None else bias, out, rows * outputs, outputs, splits),
                BIAS=bias is not None,
                SIZE=_ADDED,
            )
    return out


def compiled_for(target: Any, layout: Layout, rows: int, inputs: int, dtype: torch.dtype) -> Any:
    """The kernel as Triton compiles it for a `GPUTarget`, which need not be here."""
    how = tile(rows, inputs, dtype)
    options = {name: how.pop(name) for name in ("num_warps", "num_stages")}
    fixed = {**constants(layout), **how, "BIAS": True}
    number = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}[dtype]
    types = {
        **dict.fromkeys(("x", "out"), f"*{number}"),
        **dict.fromkeys(("low", "high"), "*u8"),
        **dict.fromkeys(("scale", "minimum"), "*fp16"),
        **dict.fromkeys(("scale_steps", "minimum_steps"), "*i8"),
        "bias": "*fp32",
        **dict.fromkeys(("rows", "outputs", "inputs", "steps"), "i32"),
        **dict.fromkeys(fixed, "constexpr"),
    }
    names = multiply.arg_names
    aligned = [name for name in names if types[name].startswith("*") or name in ("outputs", "inputs")]
    known = {(names.index(name),): [["tt.divisibility", 16]] for name in aligned}
    source = triton.compiler.ASTSource(multiply, {name: types[name] for name in names}, fixed, known)
    return triton.compile(source, target=target, options=options)


def _pointers(levels: Levels, unused: Tensor) -> tuple[Tensor, Tensor]:
    return levels.factors, unused if levels.steps is None else levels.steps
