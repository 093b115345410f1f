"""Where a decoder's weights come from: one set of names, whether the file is GGUF or safetensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Any, Protocol

import torch
from torch import Tensor

from specchat.errors import ModelError
from specchat.models.files.families import LLAMA, Family
from specchat.models.files.foreign_errors import one_line
from specchat.models.files.gguf_formats import FORMATS
from specchat.models.files.gguf_reader import GROUP, FourBit, GgufReader, StoredTensor
from specchat.models.files.safetensors_header import tensors_in, weight_files
from specchat.models.files.stored_rows import StoredRows

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
_PLAIN = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
_PAIRED = ("q", "k", "q_norm", "k_norm")
_ALL = slice(None)
RowChoice = slice | list[int]
"""Which rows of a weight: neighbours, or single ones in any order."""

_AT_ONCE = 4096
"""Rows that are rounded at once: their float32 values take memory."""

_EMBEDDED_ROWS = 1024
"""Rows of the embedding that are kept unpacked."""

_ALREADY_INTERLEAVED = ("llama", "mistral")
"""Architectures whose GGUF files hold query and key rows in pairs that rotate together."""


@dataclass(frozen=True)
class TensorFacts:
    """What can be said of a tensor without reading it.

    Args:
        label: the file it is in and its name there.
        sizes: None for a tensor that is missing.
        strange: its format, where floating point numbers cannot be had from it.
    """

    label: str
    sizes: tuple[int, ...] | None
    strange: str = ""


class WeightSource(Protocol):
    """Weights by our own names: `embed`, `head`, `norm`, and per layer `q`, `k`, `v`, `o`, `gate`, `up`, `down`, …"""

    @property
    def interleaved(self) -> bool:
        """Whether rows of q and k that rotate together already lie side by side."""

    @property
    def rounds(self) -> bool:
        """Whether weights may be taken in 4 bits where the source has more."""

    def stored(self, name: str, layer: int | None = None) -> StoredRows | None:
        """A weight as it lies, or None where it must be asked for in float32."""

    def dense(self, name: str, layer: int | None = None, part: str = "weight", rows: RowChoice = _ALL) -> Tensor:
        """A weight in float32, or some of its rows."""

    def outputs(self, name: str, layer: int | None = None) -> int:
        """How many rows a weight has."""

    def has(self, name: str, layer: int | None = None, part: str = "weight") -> bool:
        """Whether there is such a weight."""

    def about(self, name: str, layer: int | None = None, part: str = "weight") -> TensorFacts:
        """What can be said of it, also of one that is missing."""

    def four_bit(self, name: str, layer: int | None = None) -> FourBit | None:
        """The weight in 4 bits, unpacked, where the source has it so."""

    def embed(self, ids: list[int]) -> Tensor:
        """(n, d) float32 rows of the embedding."""

    def let_go(self) -> None:
        """Give back memory that what was read so far takes; it can be read again."""


class GgufSource:
    """Weights of a GGUF file, dequantised when asked for."""

    rounds = False

    def __init__(self, path: Path) -> None:
        self._file = GgufReader(path)
        self._embedding_rows = Lock()
        self._embedded: dict[int, Tensor] = {}  # words come back, and unpacking a row takes longer than finding it
        self.interleaved = self._file.metadata.get("general.architecture") in _ALREADY_INTERLEAVED

    def stored(self, name: str, layer: int | None = None) -> StoredRows | None:
        tensor = self._file.tensor(self._name(name, layer, "weight"))
        return StoredRows(int(tensor.kind), tensor.data, tensor.shape[-1])

    def dense(self, name: str, layer: int | None = None, part: str = "weight", rows: RowChoice = _ALL) -> Tensor:
        tensor = self._file.tensor(self._name(name, layer, part))
        return tensor.dense() if rows == _ALL else tensor.rows(rows)

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
        with self._embedding_rows:
            if unknown := [token for token in dict.fromkeys(ids) if token not in self._embedded]:
                if len(self._embedded) + len(unknown) > _EMBEDDED_ROWS:
                    self._embedded.clear()
                    unknown = list(dict.fromkeys(ids))
                self._embedded.update(zip(unknown, self._embedding.rows(unknown), strict=True))
            return torch.stack([self._embedded[token] for token in ids])

    def let_go(self) -> None:
        self._file.let_go()

    def _name(self, name: str, layer: int | None, part: str) -> str:
        where = "" if layer is None else f"blk.{layer}."
        return f"{where}{_GGUF_NAMES[name]}.{part}"


class TensorSource:
    """Weights as transformers names them: a folder of safetensors, or a network's own state."""

    interleaved = False
    rounds = False

    def __init__(self, tensors: Mapping[str, Any], family: Family = LLAMA, place: str = "the network") -> None:
        """Tensors by their names; `place` says where they are from, for errors."""
        self._tensors = tensors
        self._family = family
        self._place = place

    @classmethod
    def of_folder(cls, folder: Path, family: Family = LLAMA) -> TensorSource:
        """The weights of a folder of safetensors.

        Raises:
            WeightsError: a file that is damaged, or an index that says something else.
        """
        from safetensors.torch import load_file

        tensors_in(folder)
        tensors: dict[str, Tensor] = {}
        for file in weight_files(folder):
            with one_line(f"{file} cannot be read"):
                tensors |= load_file(file)
        return cls(tensors, family, str(folder))

    def stored(self, name: str, layer: int | None = None) -> StoredRows | None:
        return StoredRows.of_tensor(self._tensors[self._name(name, layer, "weight")])

    def dense(self, name: str, layer: int | None = None, part: str = "weight", rows: RowChoice = _ALL) -> Tensor:
        tensor: Tensor = self._tensors[self._name(name, layer, part)]
        values = tensor[rows].detach().float()
        return values + self._family.norm_offset if name.endswith("norm") else values

    def outputs(self, name: str, layer: int | None = None) -> int:
        return len(self._tensors[self._name(name, layer, "weight")])

    def has(self, name: str, layer: int | None = None, part: str = "weight") -> bool:
        return name in self._family.hub_names and self._name(name, layer, part) in self._tensors

    def about(self, name: str, layer: int | None = None, part: str = "weight") -> TensorFacts:
        stored = self._name(name, layer, part)
        label = f"{self._place}: tensor {stored}"
        if stored not in self._tensors:
            return TensorFacts(label, None)
        tensor = self._tensors[stored]
        return TensorFacts(label, tuple(tensor.shape), "" if tensor.dtype in _PLAIN else str(tensor.dtype))

    def four_bit(self, name: str, layer: int | None = None) -> FourBit | None:
        return None

    def embed(self, ids: list[int]) -> Tensor:
        embedding = self._tensors[self._name("embed", None, "weight")]
        rows: Tensor = embedding[torch.tensor(ids, dtype=torch.int64)]
        return rows.detach().float()

    def let_go(self) -> None:
        """Nothing to give back: the tensors are in memory as they are."""

    def _name(self, name: str, layer: int | None, part: str) -> str:
        where = "" if layer is None else f"model.layers.{layer}."
        return f"{where}{self._family.hub_names[name]}.{part}"


class _Passing:
    """Hands on what another source has."""

    def __init__(self, source: WeightSource) -> None:
        self._source = source

    @property
    def interleaved(self) -> bool:
        return self._source.interleaved

    @property
    def rounds(self) -> bool:
        return self._source.rounds

    def stored(self, name: str, layer: int | None = None) -> StoredRows | None:
        return self._source.stored(name, layer)

    def dense(self, name: str, layer: int | None = None, part: str = "weight", rows: RowChoice = _ALL) -> Tensor:
        return self._source.dense(name, layer, part, rows)

    def outputs(self, name: str, layer: int | None = None) -> int:
        return self._source.outputs(name, layer)

    def has(self, name: str, layer: int | None = None, part: str = "weight") -> bool:
        return self._source.has(name, layer, part)

    def about(self, name: str, layer: int | None = None, part: str = "weight") -> TensorFacts:
        return self._source.about(name, layer, part)

    def four_bit(self, name: str, layer: int | None = None) -> FourBit | None:
        return self._source.four_bit(name, layer)

    def embed(self, ids: list[int]) -> Tensor:
        return self._source.embed(ids)

    def let_go(self) -> None:
        self._source.let_go()


class RoundedSource(_Passing):
    """A source that has every weight in 4 bits, rounded where the file has more: for a model that only guesses."""

    @property
    def rounds(self) -> bool:
        return True

    def four_bit(self, name: str, layer: int | None = None) -> FourBit | None:
        own, out = super().four_bit(name, layer), self.outputs(name, layer)
        if own is not None:
            return own
        parts = (self.dense(name, layer, rows=slice(at, min(out, at + _AT_ONCE))) for at in range(0, out, _AT_ONCE))
        rounded = [FourBit.rounded(part) for part in parts if part.shape[1] % GROUP == 0]
        return FourBit.joined(rounded) if rounded else None


class PairedSource(_Passing):
    """A source whose query and key rows that rotate together lie side by side, whatever the file's order."""

    def __init__(self, source: WeightSource, head_dim: int) -> None:
        super().__init__(source)
        self._head_dim = head_dim
        self._as_it_is = source.interleaved

    @property
    def interleaved(self) -> bool:
        return True

    def stored(self, name: str, layer: int | None = None) -> StoredRows | None:
        stored = super().stored(name, layer)
        if stored is None or self._as_it_is or name not in _PAIRED:
            return stored
        return stored.permuted(self._order(stored.rows))

    def dense(self, name: str, layer: int | None = None, part: str = "weight", rows: RowChoice = _ALL) -> Tensor:
        if self._as_it_is or name not in _PAIRED:
            return super().dense(name, layer, part, rows)
        weight = super().dense(name, layer, part)
        return weight[self._order(len(weight))[rows]]

    def four_bit(self, name: str, layer: int | None = None) -> FourBit | None:
        group = super().four_bit(name, layer)
        if group is None or self._as_it_is or name not in _PAIRED:
            return group
        return group.permuted(self._order(len(group.numbers)))

    def _order(self, rows: int) -> Tensor:
        if rows % self._head_dim:
            raise ModelError(f"{rows} rows of queries or keys are no whole heads of {self._head_dim}")
        return paired_rows(rows, self._head_dim)


class ScaledSource(_Passing):
    """A source whose embeddings and whose norms of queries are multiplied by a family's factors.

    The embedding as the head's weight stays as it is. Scaling the norm scales every query, before it is rotated.
    """

    def __init__(self, source: WeightSource, embedding_scale: float, query_scale: float) -> None:
        super().__init__(source)
        self._embedding_scale = embedding_scale
        self._query_scale = query_scale

    def dense(self, name: str, layer: int | None = None, part: str = "weight", rows: RowChoice = _ALL) -> Tensor:
        values = super().dense(name, layer, part, rows)
        return values * self._query_scale if name == "q_norm" else values

    def embed(self, ids: list[int]) -> Tensor:
        return super().embed(ids) * self._embedding_scale


def head_rows(source: WeightSource, tied: bool, tokens: Sequence[int]) -> Tensor:
    """(n, d) float32 rows of the head for these tokens, with the final norm's factors in them."""
    return source.dense("embed" if tied else "head", rows=list(tokens)) * source.dense("norm")


def paired_rows(rows: int, head_dim: int) -> Tensor:
    """(rows,) where each row of q or k stood before those that rotate together were put side by side.

    Halves become pairs: value i of a head rotates with value i + head_dim / 2.
    """
    pairs = torch.arange(head_dim).view(2, head_dim // 2).t().flatten()
    return (torch.arange(rows // head_dim)[:, None] * head_dim + pairs).flatten()
