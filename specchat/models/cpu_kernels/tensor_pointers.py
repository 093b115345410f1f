"""Addresses of tensors for C, which cannot check them: format, sizes and memory order are checked here."""

from __future__ import annotations

import torch
from torch import Tensor

from specchat.errors import ModelError


def pointer(what: str, tensor: Tensor, dtype: torch.dtype, *sizes: int) -> int:
    """Where a tensor's data lie; valid as long as the tensor lives.

    Args:
        what: what it is, in words, for the error.
        dtype, sizes: what C takes it for.

    Raises:
        ModelError: it is something else, has gaps, or lies on another device.
    """
    if tensor.dtype != dtype or tensor.shape != sizes or tensor.device.type != "cpu" or not tensor.is_contiguous():
        gaps = "" if tensor.is_contiguous() else " with gaps"
        here = "" if tensor.device.type == "cpu" else f" on {tensor.device}"
        raise ModelError(
            f"the native kernels refuse {what}: {tuple(tensor.shape)} {_name(tensor.dtype)}{gaps}{here}, "
            f"not {sizes} {_name(dtype)}"
        )
    return tensor.data_ptr()


def maybe_pointer(what: str, tensor: Tensor | None, dtype: torch.dtype, *sizes: int) -> int | None:
    """The same, or None for none."""
    return None if tensor is None else pointer(what, tensor, dtype, *sizes)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
