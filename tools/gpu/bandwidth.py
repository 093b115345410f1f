"""The memory bandwidth of the device, which bounds the speed of plain decoding."""

from __future__ import annotations

import torch

from tools.gpu.results import Outcome, Results, table
from tools.gpu.setup import Setup, best_s

_TIMES = 10


def measure(setup: Setup, results: Results) -> Outcome:
    """A large sum and a large copy, each the best of several."""
    count = setup.extent.buffer_bytes // 4
    numbers = torch.empty(count, device=setup.device).normal_()
    other = torch.empty_like(numbers)
    read = numbers.nbytes / best_s(numbers.sum, setup.device, _TIMES)
    copied = 2 * numbers.nbytes / best_s(lambda: other.copy_(numbers), setup.device, _TIMES)
    rows = [("read (sum)", f"{read / 1e9:.0f}"), ("copy, read and written", f"{copied / 1e9:.0f}")]
    return Outcome(
        figures={"read_bytes_per_s": read, "copy_bytes_per_s": copied, "buffer_bytes": numbers.nbytes},
        tables=(table(f"Memory, {numbers.nbytes / 1e6:.0f} MB, best of {_TIMES}", ("", "GB/s"), rows),),
    )


def bandwidth_of(setup: Setup, results: Results) -> float:
    """Bytes per second: the better of reading and copying, as measured earlier or now."""
    figures = results.figures("bandwidth") or measure(setup, results).figures
    return max(float(figures["read_bytes_per_s"]), float(figures["copy_bytes_per_s"]))
