"""Where and with what a figure was measured: hardware, versions, commit, command, date, peak memory, energy."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specchat import __version__
from specchat.compiled import machine as host

if TYPE_CHECKING:
    import torch

_PACKAGES = ("torch", "transformers", "llama-cpp-python")


@dataclass(frozen=True)
class Circumstances:
    """Hardware, versions and command: needed to judge a figure or to measure it again."""

    made: str
    command: str
    commit: str | None
    processor: str
    cores: int
    memory_bytes: int | None
    load_average: float | None
    accelerator: str | None
    system: str
    versions: dict[str, str] = field(default_factory=dict)


def circumstances() -> Circumstances:
    """As they are now. The load average tells whether the machine was busy with something else."""
    import torch

    return Circumstances(
        made=datetime.now(UTC).isoformat(timespec="seconds"),
        command="specchat " + shlex.join(sys.argv[1:]),
        commit=_commit(),
        processor=host.cpu_name(),
        cores=host.usable_cores(),
        memory_bytes=host.memory_bytes(),
        load_average=os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        accelerator=torch.cuda.get_device_name(0) if torch.cuda.is_available() else None,
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        versions={"specchat": __version__, "python": platform.python_version(), **_versions()},
    )


@dataclass(frozen=True)
class PeakMemory:
    """Peak memory: of the process on the host, and on the CUDA device where there is one."""

    resident_bytes: int
    cuda_bytes: int | None = None


def reset_peak_memory(device: torch.device) -> None:
    """Begin to count anew, as far as the system lets us."""
    host.reset_peak()
    if device.type == "cuda":
        import torch

        torch.cuda.reset_peak_memory_stats(device)


def peak_memory(device: torch.device) -> PeakMemory:
    """The peak since `reset_peak_memory`, or since the process began where that was refused."""
    cuda: int | None = None
    if device.type == "cuda":
        import torch

        cuda = int(torch.cuda.max_memory_allocated(device))
    return PeakMemory(host.peak_process_bytes(), cuda)


def _versions() -> dict[str, str]:
    found: dict[str, str] = {}
    for package in _PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


def _commit() -> str | None:
    """The commit of the source tree this runs from, with a + where files have changed since."""
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():
        return None
    questions = (["rev-parse", "--short=12", "HEAD"], ["status", "--porcelain", "--untracked-files=no"])
    try:
        commit, changed = (
            subprocess.run(
                ["git", "-C", str(root), *asked], capture_output=True, encoding="utf-8", errors="replace", timeout=10
            )
            for asked in questions
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    if commit.returncode:
        return None
    return commit.stdout.strip() + ("+" if changed.stdout.strip() else "")


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
