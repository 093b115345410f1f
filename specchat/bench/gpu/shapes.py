"""Shapes of models that people run, to be filled with noise or with a smaller model's weights."""

from __future__ import annotations

from typing import Any

from specchat.bench.gpu.setup import Setup

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
