"""Tiny random networks with recurrent layers, one for each architecture of transformers that runs here."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch

V, HIDDEN = 61, 32
_MAMBA: dict[str, Any] = {"mamba_d_state": 8, "mamba_d_head": 16, "mamba_n_heads": 4, "mamba_n_groups": 2}
_DELTA: dict[str, Any] = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
_BOTH = ["linear_attention", "full_attention", "linear_attention"]
_EXPERTS: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
HYBRIDS: dict[str, dict[str, Any]] = {
    "qwen3_next": {
        **_DELTA, **_EXPERTS, "head_dim": 16, "layer_types": _BOTH, "shared_expert_intermediate_size": 16,
    },
    "qwen3_5_text": {**_DELTA, "head_dim": 16, "layer_types": _BOTH},
    "granitemoehybrid": {
        **_MAMBA, "layer_types": _BOTH, "num_local_experts": 4, "shared_intermediate_size": 24, "logits_scaling": 0.5,
        "embedding_multiplier": 1.5, "residual_multiplier": 0.8, "attention_multiplier": 0.25,
        "position_embedding_type": "rope",
    },
    "olmo_hybrid": {**_DELTA, "layer_types": _BOTH},
    "bamba": {**_MAMBA, "attn_layer_indices": [1]},
    "zamba2": {
        "mamba_d_state": 8, "n_mamba_heads": 4, "mamba_ngroups": 2, "num_mem_blocks": 1,
        "layers_block_type": ["linear_attention", "hybrid", "linear_attention"],
    },
    "falcon_h1": {**_MAMBA, "mamba_d_ssm": 64, "embedding_multiplier": 1.5, "lm_head_multiplier": 0.5},
    "nemotron_h": {
        "mamba_num_heads": 4, "mamba_head_dim": 16, "ssm_state_size": 8, "n_groups": 2, "head_dim": 8,
        "layers_block_type": ["linear_attention", "full_attention", "mlp"],
    },
    "lfm2": {"layer_types": ["conv", "full_attention", "conv"], "block_auto_adjust_ff_dim": False},
}  # fmt: skip


@lru_cache
def hybrid(family: str, seed: int = 0, vocab_size: int = V) -> Any:
    """One network per architecture for all tests; no test may change it."""
    import transformers

    shape = {
        "vocab_size": vocab_size,
        "hidden_size": HIDDEN,
        "intermediate_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": False,
        "pad_token_id": None,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    config = transformers.AutoConfig.for_model(family, **{**shape, **HYBRIDS[family]})
    config._attn_implementation = "sdpa"
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network = transformers.AutoModelForCausalLM.from_config(config).eval().float()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in network.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() == 1:  # norms, biases and decays, as they were initialised
                parameter.add_(0.2 * noise)
            else:
                parameter.copy_(0.25 * noise)
    return network
