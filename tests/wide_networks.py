"""Random networks with a large vocabulary: logits are most of what a round takes, as with real models."""

from __future__ import annotations

import torch
import transformers

WIDE_V = 6000


def wide_network(width: int, inner: int, layers: int, heads: int) -> transformers.LlamaForCausalLM:
    """A Llama of these sizes, with half as many heads for keys and values; always the same weights."""
    config = transformers.LlamaConfig(
        vocab_size=WIDE_V, hidden_size=width, intermediate_size=inner, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=heads // 2, max_position_embeddings=4096,
    )  # fmt: skip
    config._attn_implementation = "sdpa"
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(config).eval()
