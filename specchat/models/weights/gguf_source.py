"""Weights of a GGUF file, read without unpacking it: tensors as views of the file, dequantised when asked for."""

from __future__ import annotations

import math
import mmap
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from specchat.compiled.machine import usable_cores
from specchat.errors import DamagedWeights
from specchat.models.weights.gguf_header import FACTORS, FORMATS, FOUR_BIT, map_parts, read_header
from specchat.models.weights.grouped_codes import unpacked
from specchat.models.weights.weight_source import ALL_ROWS, FourBit, RowChoice, StoredRows, TensorFacts, WeightSource

if TYPE_CHECKING:  # imported where a file is read: weights of other formats need no such package
    from gguf import GGMLQuantizationType


@dataclass(frozen=True)
class StoredTensor:
    """One tensor as it lies in the file: rows of packed blocks.

    Args:
        shape: torch's order, the row length last.
        data: (rows, bytes per row) uint8, a view of the file.
    """

    shape: tuple[int, ...]
    kind: GGMLQuantizationType
    data: np.ndarray[Any, np.dtype[np.uint8]]

    def rows(self, ids: list[int] | slice = slice(None)) -> Tensor:
        """Some rows (all by default), dequantised to float32."""
        packed = self._typed(np.array(self.data[ids]))
        return _dequantised(packed, self.kind, self.shape[-1]).view(-1, *self.shape[1:])

    def dense(self) -> Tensor:
        return self.rows().view(self.shape)

    def groups(self) -> FourBit | None:
        """The file's own 4-bit numbers, scales and minima, or None where the format is another."""
        if int(self.kind) not in FOUR_BIT:
            return None
        return unpacked(int(self.kind), torch.from_numpy(np.array(self.data)), self.shape[-1]).four_bit()

    def _typed(self, data: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        from gguf import GGMLQuantizationType

        plain = {GGMLQuantizationType.F32: np.float32, GGMLQuantizationType.F16: np.float16}.get(self.kind)
        return data.view(plain) if plain else data


class GgufReader:
    """The tensors of a GGUF file by name."""

    def __init__(self, path: Path) -> None:
        from gguf import GGMLQuantizationType

        header = read_header(path)
        self.path, self.metadata = path, header.metadata
        self._mapped = map_parts(header)
        starts = zip(self._mapped, header.parts, strict=True)
        data = [np.frombuffer(mapped, dtype=np.uint8)[part.start :] for mapped, part in starts]
        self.tensors: dict[str, StoredTensor] = {}
        try:
            for tensor in header.tensors:
                own = data[tensor.part][tensor.offset : tensor.offset + tensor.nbytes]
                rows = own.reshape(math.prod(tensor.shape[:-1]), -1)
                self.tensors[tensor.name] = StoredTensor(tensor.shape, GGMLQuantizationType(tensor.kind), rows)
        except ValueError as error:  # a format that the installed package is too old for
            raise DamagedWeights(f"{path} cannot be read: {error}") from None

    def let_go(self) -> None:
        """Give the memory of the pages read so far back to the system; they are read again when needed."""
        if hasattr(mmap, "MADV_DONTNEED"):
            for mapped in self._mapped:
                mapped.madvise(mmap.MADV_DONTNEED)


_AT_ONCE = 1 << 20
"""Bytes that one thread dequantises at once: what is computed on the way stays in the processor's caches."""


def _dequantised(packed: np.ndarray[Any, Any], kind: GGMLQuantizationType, length: int) -> Tensor:
    """(rows, length) float32 of (rows, bytes per row); many of them by all cores.

    By numpy, which lets other threads run: torch's threads would wait for each other after each of twenty small steps.
    """
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize

    if kind is GGMLQuantizationType.F32:
        return torch.from_numpy(packed)
    step = max(1, _AT_ONCE // (packed[:1].nbytes or 1))
    if 0 < len(packed) <= step:
        return torch.from_numpy(np.ascontiguousarray(dequantize(packed, kind), dtype=np.float32))
    numbers = np.empty((len(packed), length), dtype=np.float32)

    def fill(at: int) -> None:
        numbers[at : at + step] = dequantize(packed[at : at + step], kind)

    with ThreadPoolExecutor(usable_cores()) as threads:
        deque(threads.map(fill, range(0, len(packed), step)), maxlen=0)
    return torch.from_numpy(numbers)


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


class GgufSource(WeightSource):
    """Weights of a GGUF file, dequantised when asked for."""

    def __init__(self, path: Path) -> None:
        self._file = GgufReader(path)
        self.interleaved = self._file.metadata.get("general.architecture") in _ALREADY_INTERLEAVED
        self._embedding_rows = Lock()
        self._row_of: dict[int, int] = {}  # words come back, and unpacking a row takes longer than finding it

    def stored(self, name: str, layer: int | None = None) -> StoredRows | None:
        tensor = self._file.tensors[self._name(name, layer, "weight")]
        return StoredRows(int(tensor.kind), tensor.data, tensor.shape[-1])

    def dense(self, name: str, layer: int | None = None, part: str = "weight", rows: RowChoice = ALL_ROWS) -> Tensor:
        tensor = self._file.tensors[self._name(name, layer, part)]
        return tensor.dense() if rows == ALL_ROWS else tensor.rows(rows)

    def about(self, name: str, layer: int | None = None, part: str = "weight") -> TensorFacts:
        stored = self._name(name, layer, part)
        label = f"{self._file.path}: tensor {stored}"
        if stored not in self._file.tensors:
            return TensorFacts(label, None)
        tensor = self._file.tensors[stored]
        known = FORMATS[int(tensor.kind)]
        return TensorFacts(label, tensor.shape, "" if known.holds_weights else known.name)

    def four_bit(self, name: str, layer: int | None = None) -> FourBit | None:
        return self._file.tensors[self._name(name, layer, "weight")].groups()

    @cached_property
    def _embedding(self) -> StoredTensor:
        return self._file.tensors[self._name("embed", None, "weight")]

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
        return self._file.tensors[FACTORS].dense() if FACTORS in self._file.tensors else None

    def let_go(self) -> None:
        self._file.let_go()

    def _name(self, name: str, layer: int | None, part: str) -> str:
        where = "" if layer is None else f"blk.{layer}."
        return f"{where}{_GGUF_NAMES[name]}.{part}"
