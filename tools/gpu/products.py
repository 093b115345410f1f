"""Weights in a GGUF file's own bits times rows of activations: whether the numbers are right, and how fast that is."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from specchat.models.decoder.cuda_linear import example, grouped_product, rebuilt_product
from specchat.models.weights.gguf_header import Kind
from specchat.models.weights.grouped_codes import LAYOUTS, Layout, PackedCodes
from tools.gpu.bandwidth import bandwidth_of
from tools.gpu.results import Goal, Outcome, Results, table
from tools.gpu.setup import Setup, best_s

WANTED_SHARE = 0.7
_MOST_OFF = 0.02


def measure(setup: Setup, results: Results) -> Outcome:
    """An output head of 8 billion parameters in every format that is kept, beside the same weights in 16 or 32 bits."""
    allowed = bandwidth_of(setup, results)
    rows = (*setup.extent.rows, 128)
    found = [_of_format(setup, Kind(kind), layout, rows, allowed) for kind, layout in LAYOUTS.items()]
    dense = str(setup.dtype).removeprefix("torch.")
    columns = (
        "format",
        "multiplied by",
        *(f"{count} rows, ms" for count in rows),
        f"{dense}, 1 row, ms",
        "GB/s, 1 row",
    )
    goals = [Goal(f"{each['format']}, 1 row, share of the bandwidth", each["share"], WANTED_SHARE) for each in found]
    return Outcome(
        figures={"bandwidth": allowed, "products": found},
        tables=(table("Products", columns, [_row(each) for each in found]),),
        goals=tuple(goals),
        notes=tuple(dict.fromkeys(each["note"] for each in found if each["note"])),
        wrong=tuple(fault for each in found for fault in each["wrong"]),
    )


def _of_format(setup: Setup, kind: Kind, layout: Layout, rows: tuple[int, ...], allowed: float) -> dict[str, Any]:
    kernel, times = grouped_product(setup.device, layout), 2 if setup.tiny else 10
    multiply = rebuilt_product if isinstance(kernel, str) else kernel
    out, inputs, copies = (80, 512, 2) if setup.tiny else (80, 4096, 1600)  # more than a device's caches hold
    codes = example(layout, out, inputs)
    weight = PackedCodes.joined([PackedCodes.of(codes).to(setup.device)] * copies)
    once = codes.dense().to(setup.device)
    dense = once.to(setup.dtype).repeat(copies, 1)
    seconds, wrong = [], []
    for count in rows:
        x = torch.cos(torch.arange(count * inputs).float()).view(count, inputs).to(setup.device, setup.dtype)
        expected = x.float() @ once.t()
        product = multiply(x, weight, None).float().view(count, copies, out)
        off = float((product - expected[:, None]).abs().max() / expected.abs().max())
        if not off < _MOST_OFF:
            wrong.append(f"{kind.name}, {count} rows: the product is off by {off:.2g} of its largest number")
        seconds.append((count, best_s(partial(multiply, x, weight, None), setup.device, times)))
    one = torch.ones(1, inputs, device=setup.device, dtype=setup.dtype)
    rate = weight.nbytes / seconds[0][1]
    return {
        "format": kind.name,
        "kernel": "torch" if isinstance(kernel, str) else "Triton",
        "seconds": seconds,
        "dense_s": best_s(partial(F.linear, one, dense), setup.device, times),
        "bytes": weight.nbytes,
        "bytes_per_s": rate,
        "share": rate / allowed,
        "note": f"the Triton kernel is not in use: {kernel}" if isinstance(kernel, str) else "",
        "wrong": wrong,
    }


def _row(figures: dict[str, Any]) -> tuple[str, ...]:
    times = [f"{1e3 * seconds:.3f}" for _, seconds in figures["seconds"]]
    rate = f"{figures['bytes_per_s'] / 1e9:.0f}"
    return figures["format"], figures["kernel"], *times, f"{1e3 * figures['dense_s']:.3f}", rate
