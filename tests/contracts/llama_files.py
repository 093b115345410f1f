"""The tiny networks of these tests as GGUF files in float32, for llama.cpp itself where it is installed."""

from __future__ import annotations

import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from gguf import GGUFWriter
from torch import Tensor

_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


@lru_cache
def folder() -> Path:
    """Where the files lie until the process ends."""
    holder = tempfile.TemporaryDirectory(prefix="specchat-gguf-")
    _kept.append(holder)
    return Path(holder.name)


_kept: list[Any] = []


def written(network: Any) -> Path:
    """The file of a network of the family llama, qwen2 or qwen3; without a tokenizer."""
    config = network.config
    family = config.model_type
    path = folder() / f"{family}.gguf"
    if path.exists():
        return path
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer = GGUFWriter(path, family)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("no_vocab")
    for name, tensor in network.state_dict().items():
        if (named := _named(name)) is None or (named == "output.weight" and config.tie_word_embeddings):
            continue
        heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}.get(named.split(".")[-2])
        turned = _pairs_together(tensor, heads) if heads and family == "llama" else tensor
        writer.add_tensor(named, turned.float().contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _named(name: str) -> str | None:
    whole = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
    }
    if name in whole:
        return whole[name]
    _, _, layer, rest = name.split(".", 3)
    stem, _, kind = rest.rpartition(".")
    return f"blk.{layer}.{_NAMES[stem]}.{kind}" if stem in _NAMES else None


def _pairs_together(weight: Tensor, heads: int) -> Tensor:
    """Rows in the order of llama.cpp's rotation, in which the two halves of a pair lie side by side."""
    return torch.cat([w.view(2, -1, w.shape[-1]).transpose(0, 1).reshape(w.shape) for w in weight.chunk(heads)])
