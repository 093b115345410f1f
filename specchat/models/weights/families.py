"""The families of networks that our own decoder runs: how their files and configurations differ from Llama's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

_HUB_NAMES = {
    "embed": "model.embed_tokens",
    "head": "lm_head",
    "norm": "model.norm",
    "input_norm": "input_layernorm",
    "mlp_norm": "post_attention_layernorm",
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "q_norm": "self_attn.q_norm",
    "k_norm": "self_attn.k_norm",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}


@dataclass(frozen=True)
class Family:
    """One family, by transformers' `model_type`.

    Args:
        gguf: what GGUF files call it.
        hub_names: our names of weights → those of safetensors files.
        norm_offset: what is added to the weights of norms in safetensors files; GGUF files have it added.
        windows: whether a `sliding_window` in its configuration is meant.
        scales_embedding: whether embeddings are multiplied by the root of their size.
    """

    name: str
    gguf: str
    hub_names: Mapping[str, str] = field(default_factory=lambda: _HUB_NAMES)
    norm_offset: float = 0.0
    windows: bool = True
    scales_embedding: bool = False


_GEMMA_NORMS = {
    "post_attention_norm": "post_attention_layernorm",
    "mlp_norm": "pre_feedforward_layernorm",
    "post_mlp_norm": "post_feedforward_layernorm",
}

LLAMA = Family("llama", "llama", windows=False)

FAMILIES = {
    family.name: family
    for family in (
        LLAMA,
        Family("mistral", "mistral"),
        Family("qwen2", "qwen2"),
        Family("qwen3", "qwen3"),
        Family("smollm3", "smollm3"),
        Family("gemma3_text", "gemma3", _HUB_NAMES | _GEMMA_NORMS, norm_offset=1.0, scales_embedding=True),
    )
}
"""By transformers' name."""

GGUF_FAMILIES = {family.gguf: family for family in FAMILIES.values()}
"""By the name that GGUF files use."""
