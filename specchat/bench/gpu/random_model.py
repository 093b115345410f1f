"""A model of any shape with random weights made on the device: its costs are real, its text is meaningless."""

from __future__ import annotations

import zlib
from typing import Any

import torch
from torch import Tensor

from specchat.bench.gpu.setup import Setup
from specchat.models.decoder.decoder import Decoder
from specchat.models.decoder.shape import Shape
from specchat.models.model_loading import own_network
from specchat.models.weights.weight_source import RoundedSource, RowChoice, StoredRows, TensorFacts, WeightSource

_ALL = slice(None)
_NORMS = ("norm", "input_norm", "mlp_norm")
_WHOLE_NUMBERS = ("int8", "int4")

_SPOKEN = 256
"""Tokens the text keeps to: if it never repeated itself, drafters that learn from it would have nothing to guess."""

_LOUDER = 8.0
"""How much larger their logits are than the others': sampled text must keep to them too."""


class RandomSource(WeightSource):
    """Weights drawn when they are asked for, the same each time. Nothing is copied from the host.

    Matrices are scaled by the root of their inputs, so that every layer adds about as much as comes in. A head of its
    own favours a few tokens.
    """

    interleaved = True

    def __init__(self, config: Any, device: torch.device, dtype: torch.dtype) -> None:
        self._shapes = _shapes(config)
        self._biased = ("q", "k", "v") if config.model_type == "qwen2" else ()
        self._like: dict[str, Any] = {"device": device, "dtype": dtype}

    def stored(self, name: str, layer: int | None = None) -> StoredRows | None:
        return StoredRows.of_tensor(self.dense(name, layer))

    def dense(self, name: str, layer: int | None = None, part: str = "weight", rows: RowChoice = _ALL) -> Tensor:
        shape = self._shapes[name]
        if len(shape) == 1:
            return torch.ones(shape, **self._like)[rows]
        drawn = torch.empty(shape if part == "weight" else shape[:1], **self._like)
        seed = zlib.crc32(f"{name} {layer} {part}".encode())
        drawn.normal_(std=shape[1] ** -0.5, generator=torch.Generator(drawn.device).manual_seed(seed))
        if name == "head":
            drawn[: spoken_tokens(shape[0])] *= _LOUDER
        return drawn[rows]

    def about(self, name: str, layer: int | None = None, part: str = "weight") -> TensorFacts:
        there = name in self._shapes and (part == "weight" or name in self._biased)
        sizes = self._shapes[name] if there else None
        return TensorFacts(f"the random {name}", sizes[:1] if sizes and part == "bias" else sizes)


def random_model(setup: Setup, config: Any, precision: str) -> Decoder:
    """Our own decoder over noise, by the fastest kernels there are for the precision here."""
    shape = Shape.of(config)
    dtype = torch.float32 if precision in _WHOLE_NUMBERS else setup.dtype
    source: WeightSource = RandomSource(config, setup.device, dtype)
    source = RoundedSource(source) if precision == "int4" else source
    network, _ = own_network(shape, source, precision, setup.device, setup.kernels)
    return Decoder(network, config.max_position_embeddings)


def random_prompt(model: Decoder, tokens: int, seed: int = 0) -> list[int]:
    """This many of the tokens that are favoured, the same for one seed."""
    drawn = torch.randint(spoken_tokens(model.vocab_size), (tokens,), generator=torch.Generator().manual_seed(seed))
    return [int(token) for token in drawn]


def spoken_tokens(vocab_size: int) -> int:
    """How many tokens, from the first, a random model's text keeps to."""
    return min(_SPOKEN, vocab_size // 8)


def read_bytes(model: Decoder, precision: str, context_tokens: int) -> int:
    """Bytes that a pass of one row must read: every weight but the embedding table, and the cache."""
    shape, network = model.network.shape, model.network
    width = 4 if precision == "float32" else 2
    looked_up_in_the_file = precision in _WHOLE_NUMBERS and model.device.type == "cpu"
    table = 0 if looked_up_in_the_file else shape.vocab_size * shape.hidden * width
    cached = 4 if model.device.type == "cpu" or precision == "float32" else 2  # as the activations are
    return network.nbytes - table + 2 * shape.layers * shape.kv_heads * shape.head_dim * context_tokens * cached


def _shapes(config: Any) -> dict[str, tuple[int, ...]]:
    shape = Shape.of(config)
    matrices = ("embed", *(() if shape.tied else ("head",)), "q", "k", "v", "o", "gate", "up", "down")
    return dict.fromkeys(_NORMS, (shape.hidden,)) | {name: shape.matrix(name) for name in matrices}
