"""Small EAGLE-3 checkpoints in the two layouts in which they are published, and what such a layer computes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

HEADS, KV_HEADS, HEAD_DIM, INNER = 4, 2, 8, 40
LAYOUTS = ("authors", "speculators")
PREFIX = {"authors": "midlayer.", "speculators": "layers.0."}

Tensors = dict[str, Tensor]


def checkpoint(
    folder: Path,
    layout: str,
    hidden: int = 32,
    vocab_size: int = 61,
    rows: int = 20,
    change: Callable[[Tensors], Any] = lambda tensors: None,
    layer: Mapping[str, Any] = {},
    **config: Any,
) -> Tensors:
    """Write one; its tensors by their published names, without the layer's prefix."""
    folder.mkdir(parents=True, exist_ok=True)
    about = {
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": INNER,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "num_hidden_layers": 1,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500.0,
        "hidden_act": "silu",
        "vocab_size": vocab_size,
        "max_position_embeddings": 512,
        **layer,
    }
    if layout == "authors":
        said = about | {"architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": rows} | config
    else:
        said = {
            "architectures": ["Eagle3Speculator"],
            "speculators_model_type": "eagle3",
            "transformer_layer_config": about,
            "draft_vocab_size": rows,
            "norm_before_residual": True,
        } | config
    (folder / "config.json").write_text(json.dumps(said))
    taps = len(config.get("eagle_aux_hidden_state_layer_ids") or (0, 0, 0))
    tensors = random_tensors(hidden, vocab_size, rows, taps)
    if layout == "speculators":
        tensors["embed_tokens.weight"] = torch.randn(vocab_size, hidden, generator=torch.Generator().manual_seed(2))
    change(tensors)
    names = {name: PREFIX[layout] + name if _of_layer(name) else name for name in tensors}
    save_file({names[name]: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    return tensors


def random_tensors(hidden: int, vocab_size: int, rows: int, taps: int) -> Tensors:
    """Rows of the head stand for every third token."""
    generator = torch.Generator().manual_seed(1)
    queries, keys = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    shapes: dict[str, tuple[int, ...]] = {
        "self_attn.q_proj.weight": (queries, 2 * hidden),
        "self_attn.k_proj.weight": (keys, 2 * hidden),
        "self_attn.v_proj.weight": (keys, 2 * hidden),
        "self_attn.o_proj.weight": (hidden, queries),
        "mlp.gate_proj.weight": (INNER, hidden),
        "mlp.up_proj.weight": (INNER, hidden),
        "mlp.down_proj.weight": (hidden, INNER),
        "input_layernorm.weight": (hidden,),
        "hidden_norm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
        "fc.weight": (hidden, taps * hidden),
        "norm.weight": (hidden,),
        "lm_head.weight": (rows, hidden),
    }
    tensors = {
        name: torch.randn(shape, generator=generator) * (shape[1] ** -0.5 if len(shape) == 2 else 0.1)
        + (0 if len(shape) == 2 else 1)
        for name, shape in shapes.items()
    }
    tensors = {name: tensor.bfloat16().float() for name, tensor in tensors.items()}
    tensors["d2t"] = 2 * torch.arange(rows)
    tensors["t2d"] = torch.zeros(vocab_size, dtype=torch.bool).index_fill(0, 3 * torch.arange(rows), True)
    return tensors


def with_tap_norms(tensors: Tensors, name: str, hidden: int = 32, taps: int = 3) -> None:
    """Add the factors of the norms that the configuration's key asks for."""
    factors = (1 + 0.3 * torch.randn(taps * hidden, generator=torch.Generator().manual_seed(5))).bfloat16().float()
    if name == "norm_before_fc":
        tensors["input_norm.weight"] = factors
    if name == "fc_norm":
        tensors |= {f"fc_norm.{tap}.weight": part for tap, part in enumerate(factors.split(hidden))}


def said_by(
    tensors: Tensors, features: Tensor, embedded: Tensor, ahead: Tensor, norm_first: bool, norm_output: bool = False
) -> list[Tensor]:
    """(R,) logits after the root and after each token of a chain below it, by the paper's formulas, one row at a time.

    Args:
        features: (n, taps · d) states of the target.
        embedded: (n, d) embeddings of the tokens that follow them.
        ahead: (m, d) embeddings of the tokens of the chain.
    """
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

    config = LlamaConfig(hidden_size=HEADS * HEAD_DIM, num_attention_heads=HEADS, head_dim=HEAD_DIM, rope_theta=500.0)
    rotary = LlamaRotaryEmbedding(config)
    keys: list[Tensor] = []
    values: list[Tensor] = []

    def of_taps(feature: Tensor) -> Tensor:
        if "input_norm.weight" in tensors:
            return norm(feature, "input_norm")
        if "fc_norm.0.weight" in tensors:
            parts = feature.split(len(tensors["fc_norm.0.weight"]))
            return torch.cat([norm(part, f"fc_norm.{tap}") for tap, part in enumerate(parts)])
        return feature

    def norm(x: Tensor, name: str) -> Tensor:
        return x * (x.square().mean() + 1e-5).rsqrt() * tensors[f"{name}.weight"]

    def step(state: Tensor, token: Tensor) -> Tensor:
        normed = norm(state, "hidden_norm")
        pair = torch.cat([norm(token, "input_layernorm"), normed])
        q, k, v = (
            (tensors[f"self_attn.{name}_proj.weight"] @ pair).view(1, -1, 1, HEAD_DIM) for name in ("q", "k", "v")
        )
        cos, sin = rotary(pair, torch.tensor([[len(keys)]]))
        q, k = apply_rotary_pos_emb(q, k, cos, sin)
        keys.append(k[0, :, 0])
        values.append(v[0, :, 0])
        mixed = []
        for head in range(HEADS):
            own = head // (HEADS // KV_HEADS)
            scores = torch.stack([key[own] @ q[0, head, 0] for key in keys]) / HEAD_DIM**0.5
            mixed.append(sum(w * value[own] for w, value in zip(scores.softmax(0), values, strict=True)))
        after = (normed if norm_first else state) + tensors["self_attn.o_proj.weight"] @ torch.cat(mixed)
        inner = norm(after, "post_attention_layernorm")
        gated = torch.nn.functional.silu(tensors["mlp.gate_proj.weight"] @ inner) * (
            tensors["mlp.up_proj.weight"] @ inner
        )
        return after + tensors["mlp.down_proj.weight"] @ gated

    for feature, token in zip(features, embedded, strict=True):
        state = step(tensors["fc.weight"] @ of_taps(feature), token)
    said = [tensors["lm_head.weight"] @ norm(state, "norm")]
    for token in ahead:
        state = step(norm(state, "norm") if norm_output else state, token)
        said.append(tensors["lm_head.weight"] @ norm(state, "norm"))
    return said


def _of_layer(name: str) -> bool:
    return name.startswith(("self_attn", "mlp", "input_layernorm", "hidden_norm", "post_attention"))
