"""Energy in joules, where the device measures it: NVML for NVIDIA cards, RAPL for processors; None elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

_RAPL = Path("/sys/class/powercap")


class EnergyMeter:
    """Reads the counter of the device that computes. Everything that device does is counted, ours or not."""

    def __init__(self, device: torch.device) -> None:
        self._read = _nvml(device) if device.type == "cuda" else _rapl()

    def joules(self) -> float | None:
        """The counter's value, or None if there is no counter."""
        return self._read() if self._read is not None else None

    def since(self, before: float | None) -> float | None:
        """Joules since an earlier reading; None where there is no counter, or it began again from 0."""
        now = self.joules()
        if now is None or before is None or now < before:
            return None
        return now - before


def _nvml(device: torch.device) -> Callable[[], float | None] | None:
    try:
        import pynvml  # type: ignore[import-untyped,import-not-found,unused-ignore]
    except ImportError:
        return None
    nvml: Any = pynvml
    try:
        nvml.nvmlInit()
        handle = nvml.nvmlDeviceGetHandleByIndex(device.index or 0)
        nvml.nvmlDeviceGetTotalEnergyConsumption(handle)
    except nvml.NVMLError:
        return None
    return lambda: float(nvml.nvmlDeviceGetTotalEnergyConsumption(handle)) / 1000


def _rapl() -> Callable[[], float | None] | None:
    counters = [path / "energy_uj" for path in sorted(_RAPL.glob("intel-rapl:?")) if (path / "energy_uj").is_file()]

    def read() -> float | None:
        with suppress(OSError, ValueError):
            return sum(int(counter.read_text(encoding="utf-8")) for counter in counters) / 1e6
        return None

    return read if counters and read() is not None else None
