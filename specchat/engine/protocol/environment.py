"""Environment variables that an engine needs before torch is loaded, and the machine in a few words."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping


def engine_environment(threads: int = 0, base: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The child's environment: waiting threads spin for a moment, then sleep; few products are kept; no telemetry.

    A pass is some 200 parallel regions with gaps of 10 to 30 µs. Threads that sleep at once must be woken for each,
    which took half of a pass (SmolLM2 at int4, two virtual cores: 22 ms, against 11 ms with this spin). Threads that
    spin for long keep other processes (this very app) from the cores they wait on. It must be set before torch is
    loaded, so the parent sets it.

    oneDNN keeps what it made for 1,024 shapes of products, and every new number of rows brings some: products of four
    bfloat16 matrices for 400 numbers of rows took 627 MB with all kept and 390 MB with 64, in the same processor time.
    """
    environment = dict(base)
    environment.setdefault("OMP_WAIT_POLICY", "passive")
    environment.setdefault("GOMP_SPINCOUNT", "10000")
    environment.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "64")
    if threads:
        environment["OMP_NUM_THREADS"] = str(threads)
    environment.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    environment.setdefault("DO_NOT_TRACK", "1")
    environment.setdefault("TOKENIZERS_PARALLELISM", "false")
    environment.setdefault("PYTHONUNBUFFERED", "1")
    return environment


def machine() -> str:
    """`Linux x86_64, 2 cores`."""
    return f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"
