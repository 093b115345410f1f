"""A decoder's weights from a GGUF file."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from threading import Lock

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from specchat.models.weights.gguf_formats import FORMATS
from specchat.models.weights.gguf_reader import FourBit, GgufReader, StoredTensor
from specchat.models.weights.gguf_rotation import FACTORS
from specchat.models.weights.stored_rows import StoredRows
from specchat.models.weights.weight_source import ALL_ROWS, RowChoice, TensorFacts

_GGUF_NAMES = {
    "embed": "token_embd",
    "head": "output",
    "norm": "output_norm",
    "input_norm": "attn_norm",
    "mlp_norm": "ffn_norm",
    "post_attention_norm": "post_attention_norm",
    "post_mlp_norm": "post_ffw_norm",
    "q": "attn_q",
    "k": "attn_k",
    "v": "attn_v",
    "o": "attn_output",
    "q_norm": "attn_q_norm",
    "k_norm": "attn_k_norm",
    "gate": "ffn_gate",
    "up": "ffn_up",
    "down": "ffn_down",
}

_EMBEDDED_ROWS = 1024
"""Rows of the embedding that are kept unpacked."""

_ALREADY_INTERLEAVED = ("llama", "mistral")
"""Architectures whose GGUF files hold query and key rows in pairs that rotate together."""


class GgufSource:
    """Weights of a GGUF file, dequantised when asked for."""

    rounds = False

    def __init__(self, path: Path) -> None:
        self._file = GgufReader(path)
        self._embedding_rows = Lock()
        self._row_of: dict[int, int] = {}  # words come back, and unpacking a row takes longer than finding it
        self.interleaved = self._file.metadata.get("general.architecture") in _ALREADY_INTERLEAVED

    def stored(self, name: str, layer: int | None = None) -> StoredRows | None:
        tensor = self._file.tensor(self._name(name, layer, "weight"))
        return StoredRows(int(tensor.kind), tensor.data, tensor.shape[-1])

    def dense(self, name: str, layer: int | None = None, part: str = "weight", rows: RowChoice = ALL_ROWS) -> Tensor:
        tensor = self._file.tensor(self._name(name, layer, part))
        return tensor.dense() if rows == ALL_ROWS else tensor.rows(rows)

    def outputs(self, name: str, layer: int | None = None) -> int:
        return self._file.tensor(self._name(name, layer, "weight")).shape[0]

    def has(self, name: str, layer: int | None = None, part: str = "weight") -> bool:
        return self._name(name, layer, part) in self._file

    def about(self, name: str, layer: int | None = None, part: str = "weight") -> TensorFacts:
        stored = self._name(name, layer, part)
        label = f"{self._file.path}: tensor {stored}"
        if stored not in self._file:
            return TensorFacts(label, None)
        tensor = self._file.tensor(stored)
        known = FORMATS[int(tensor.kind)]
        return TensorFacts(label, tensor.shape, "" if known.holds_weights else known.name)

    def four_bit(self, name: str, layer: int | None = None) -> FourBit | None:
        return self._file.tensor(self._name(name, layer, "weight")).groups()

    @cached_property
    def _embedding(self) -> StoredTensor:
        return self._file.tensor(self._name("embed", None, "weight"))

    def embed(self, ids: list[int]) -> Tensor:
        if len(ids) > _EMBEDDED_ROWS:
            return self._embedding.rows(ids)
        with self._embedding_rows:
            if unknown := [token for token in dict.fromkeys(ids) if token not in self._row_of]:
                if len(self._row_of) + len(unknown) > _EMBEDDED_ROWS:
                    self._row_of.clear()
                    unknown = list(dict.fromkeys(ids))
                rows = range(len(self._row_of), len(self._row_of) + len(unknown))
                self._embedded[rows.start : rows.stop] = self._embedding.rows(unknown).numpy()
                self._row_of.update(zip(unknown, rows, strict=True))
            # By numpy, which needs a tenth of the time that torch needs to get going.
            return torch.from_numpy(self._embedded.take([self._row_of[token] for token in ids], axis=0))

    @cached_property
    def _embedded(self) -> npt.NDArray[np.float32]:
        return np.empty((_EMBEDDED_ROWS, self._embedding.shape[-1]), dtype=np.float32)

    def rotation_factors(self) -> Tensor | None:
        """(head_dim / 2,) what the rotation's angles per position are divided by, None where they are not."""
        return self._file.tensor(FACTORS).dense() if FACTORS in self._file else None

    def let_go(self) -> None:
        self._file.let_go()

    def _name(self, name: str, layer: int | None, part: str) -> str:
        where = "" if layer is None else f"blk.{layer}."
        return f"{where}{_GGUF_NAMES[name]}.{part}"
