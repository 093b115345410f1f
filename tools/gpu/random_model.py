"""Shapes of models that people run, filled with random weights on the device: costs are real, text is not."""

from __future__ import annotations

import zlib
from typing import Any

import torch
from torch import Tensor

from specchat.models.decoder.decoder import Decoder
from specchat.models.decoder.eager import EagerNetwork
from specchat.models.decoder.recorded_network import GraphNetwork
from specchat.models.decoder.shape import Shape
from specchat.models.model_loading import own_network
from specchat.models.weights.weight_source import AdjustedSource, RowChoice, StoredRows, TensorFacts, WeightSource
from tools.gpu.setup import Setup

_ROWS_BEYOND = 1024
"""Room for trees and replies behind the longest context that is timed."""


def large(setup: Setup) -> tuple[str, Any]:
    """Name and configuration of a Llama of 8 billion parameters."""
    from transformers import LlamaConfig

    if setup.tiny:
        return "tiny Llama", LlamaConfig(**_tiny(setup), rope_parameters=_rotation(500_000.0))
    return "8B Llama", LlamaConfig(
        hidden_size=4096,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
        intermediate_size=14336,
        vocab_size=128_256,
        max_position_embeddings=_longest(setup),
        rms_norm_eps=1e-5,
        rope_parameters=_rotation(500_000.0),
    )


def middling(setup: Setup) -> tuple[str, Any]:
    """Name and configuration of a Qwen2.5 of 1.5 billion parameters: biases on q, k and v, and a tied head."""
    from transformers import Qwen2Config

    tied = {"tie_word_embeddings": True, "rope_parameters": _rotation(1_000_000.0)}
    if setup.tiny:
        return "tiny Qwen2.5", Qwen2Config(**_tiny(setup), **tied)
    return "1.5B Qwen2.5", Qwen2Config(
        hidden_size=1536,
        num_hidden_layers=28,
        num_attention_heads=12,
        num_key_value_heads=2,
        intermediate_size=8960,
        vocab_size=151_936,
        max_position_embeddings=_longest(setup),
        rms_norm_eps=1e-6,
        **tied,
    )


def _tiny(setup: Setup) -> dict[str, Any]:
    return {
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 96,
        "vocab_size": 320,
        "max_position_embeddings": _longest(setup),
    }


def _longest(setup: Setup) -> int:
    # Twice, because costs are never timed beyond the middle of a context.
    return 2 * max(setup.extent.contexts) + _ROWS_BEYOND


def _rotation(theta: float) -> dict[str, Any]:
    return {"rope_type": "default", "rope_theta": theta}


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
    source = AdjustedSource(source, rounds=True) if precision == "int4" else source
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
    assert isinstance(network, EagerNetwork | GraphNetwork), "torch multiplies here"
    table = network.weights.table
    looked_up = 0 if table is None or table is network.weights.head else table.nbytes
    cached = 4 if model.device.type == "cpu" or precision == "float32" else 2  # as the activations are
    return network.nbytes - looked_up + 2 * shape.layers * shape.kv_heads * shape.head_dim * context_tokens * cached


def _shapes(config: Any) -> dict[str, tuple[int, ...]]:
    shape = Shape.of(config)
    matrices = ("embed", *(() if shape.tied else ("head",)), "q", "k", "v", "o", "gate", "up", "down")
    return dict.fromkeys(_NORMS, (shape.hidden,)) | {name: shape.matrix(name) for name in matrices}
