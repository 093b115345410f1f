"""A decoder's weights under transformers' names: from a folder of safetensors, or from a network in memory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specchat.models.weights.families import LLAMA, Family
from specchat.models.weights.foreign_code import one_line
from specchat.models.weights.safetensors_header import tensors_in, weight_files
from specchat.models.weights.weight_source import ALL_ROWS, RowChoice, StoredRows, TensorFacts, WeightSource

_FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


class TensorSource(WeightSource):
    """Weights as transformers names them: a folder of safetensors, or a network's own state."""

    def __init__(self, tensors: Mapping[str, Any], family: Family = LLAMA, place: str = "the network") -> None:
        """Tensors by their names; `place` says where they are from, for errors."""
        self._tensors = tensors
        self._family = family
        self._place = place

    @classmethod
    def of_folder(cls, folder: Path, family: Family = LLAMA) -> TensorSource:
        """The weights of a folder of safetensors; WeightsError if a file is damaged, or contradicts an index."""
        from safetensors.torch import load_file

        tensors_in(folder)
        tensors: dict[str, Tensor] = {}
        for file in weight_files(folder):
            with one_line(f"{file} cannot be read"):
                tensors |= load_file(file)
        return cls(tensors, family, str(folder))

    def stored(self, name: str, layer: int | None = None) -> StoredRows | None:
        return StoredRows.of_tensor(self._tensors[self._name(name, layer, "weight")])

    def dense(self, name: str, layer: int | None = None, part: str = "weight", rows: RowChoice = ALL_ROWS) -> Tensor:
        tensor: Tensor = self._tensors[self._name(name, layer, part)]
        values = tensor[rows].detach().float()
        return values + self._family.norm_offset if name.endswith("norm") else values

    def about(self, name: str, layer: int | None = None, part: str = "weight") -> TensorFacts:
        if name not in self._family.hub_names:
            return TensorFacts(f"{self._place}: {name}", None)
        stored = self._name(name, layer, part)
        label = f"{self._place}: tensor {stored}"
        if stored not in self._tensors:
            return TensorFacts(label, None)
        tensor = self._tensors[stored]
        return TensorFacts(label, tuple(tensor.shape), "" if tensor.dtype in _FLOATS else str(tensor.dtype))

    def _name(self, name: str, layer: int | None, part: str) -> str:
        where = "" if layer is None else f"model.layers.{layer}."
        return f"{where}{self._family.hub_names[name]}.{part}"
