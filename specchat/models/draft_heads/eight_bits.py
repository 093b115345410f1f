"""Matrices of a trained network in 8 bits: as the compiled kernels multiply them, and half as large as in bfloat16."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from specchat.errors import DamagedWeights
from specchat.models.weights.safetensors_header import TensorEntry

STEPS = ".steps"
"""Behind a matrix's name: the tensor of its steps."""

_TOGETHER, _LARGEST, _LEAST = 32, 127, 1e-12


def fits(tensor: Tensor) -> bool:
    """Whether it is a matrix whose rows can be cut into groups that share a step."""
    return tensor.dim() == 2 and tensor.shape[1] % _TOGETHER == 0


def rounded(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """A matrix (m, n) as whole numbers from −127 to 127, (m, n) int8, and the step of each 32, (m, n / 32) float16.

    Rounding what `unrounded` gives once more changes nothing, so kernels that round like this multiply what is stored.
    """
    groups = matrix.float().reshape(len(matrix), -1, _TOGETHER)
    steps = (groups.abs().amax(dim=2) / _LARGEST).half()
    numbers = (groups / steps.float().clamp_min(_LEAST)[..., None]).round().clamp(-_LARGEST, _LARGEST)
    return numbers.to(torch.int8).flatten(1), steps


def unrounded(numbers: Tensor, steps: Tensor) -> Tensor:
    """(m, n) float32 from what `rounded` gives."""
    groups = numbers.float().reshape(len(numbers), -1, _TOGETHER)
    return (groups * steps.float()[..., None]).flatten(1)


def check_steps(name: str, entries: Mapping[str, TensorEntry], where: str) -> None:
    """Refuse an int8 tensor whose steps are not there.

    Args:
        where: names the file.

    Raises:
        WeightsError: there are no steps, or they do not fit the matrix.
    """
    matrix, steps = entries[name], entries.get(name + STEPS)
    if steps is None:
        raise DamagedWeights(f"{where} has no tensor {name + STEPS}, the steps of {name}")
    wanted = (matrix.shape[0], matrix.shape[1] // _TOGETHER) if len(matrix.shape) == 2 else ()
    if not wanted or matrix.shape[1] % _TOGETHER:
        raise DamagedWeights(f"{where}: tensor {name} of {list(matrix.shape)} is not a matrix of groups of {_TOGETHER}")
    if steps.dtype != "F16" or steps.shape != wanted:
        raise DamagedWeights(
            f"{where}: tensor {name + STEPS} is {list(steps.shape)} in {steps.dtype}, not {list(wanted)} in F16"
        )
