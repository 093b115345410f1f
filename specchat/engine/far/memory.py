"""The engine's memory: how much its models take, and giving back what is no longer used."""

from __future__ import annotations

import gc

import torch

from specchat.models.machine import process_bytes


def free_memory() -> None:
    """Give back the memory of models that nothing refers to."""
    gc.unfreeze()  # what a pair's loading set aside
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()  # else what was freed still counts as taken


def memory_bytes(device: torch.device) -> int:
    """What the models on this device take: torch's tensors on CUDA, elsewhere the whole process."""
    if device.type == "cuda":
        return int(torch.cuda.memory_allocated(device))
    return process_bytes()
