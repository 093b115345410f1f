"""Whole models of a few kilobytes, as files: configuration, tokenizer and weights, to be loaded like any other."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize
from safetensors.numpy import save_file

from specchat.config import config_dir
from specchat.decoding.vocabulary import _BYTE_OF

HIDDEN, INNER, LAYERS, HEADS, KV_HEADS, HEAD_DIM = 64, 96, 2, 4, 2, 16
MERGES = ["h e", "l l", "he ll"]
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TOKENS = [*SPECIAL, *sorted(_BYTE_OF), *(merge.replace(" ", "") for merge in MERGES)]
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"

NUMBERS: dict[str, Any] = {
    "block_count": LAYERS,
    "context_length": 128,
    "embedding_length": HIDDEN,
    "feed_forward_length": INNER,
    "attention.head_count": HEADS,
    "attention.head_count_kv": KV_HEADS,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "rope.freq_base": 10000.0,
    "rope.dimension_count": HEAD_DIM,
    "vocab_size": len(TOKENS),
}
CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": LAYERS,
    "max_position_embeddings": 128,
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "vocab_size": len(TOKENS),
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "eos_token_id": 0,
}
_QUERIES, _KEYS = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
_LAYER = {
    "attn_norm": ("input_layernorm", (HIDDEN,)),
    "attn_q": ("self_attn.q_proj", (_QUERIES, HIDDEN)),
    "attn_k": ("self_attn.k_proj", (_KEYS, HIDDEN)),
    "attn_v": ("self_attn.v_proj", (_KEYS, HIDDEN)),
    "attn_output": ("self_attn.o_proj", (HIDDEN, _QUERIES)),
    "ffn_norm": ("post_attention_layernorm", (HIDDEN,)),
    "ffn_gate": ("mlp.gate_proj", (INNER, HIDDEN)),
    "ffn_up": ("mlp.up_proj", (INNER, HIDDEN)),
    "ffn_down": ("mlp.down_proj", (HIDDEN, INNER)),
}


def gguf_sizes() -> dict[str, tuple[int, ...]]:
    """Every tensor of the model by its GGUF name."""
    layers = {f"blk.{i}.{name}.weight": sizes for i in range(LAYERS) for name, (_, sizes) in _LAYER.items()}
    return {"token_embd.weight": (len(TOKENS), HIDDEN), "output_norm.weight": (HIDDEN,), **layers}


def hub_sizes() -> dict[str, tuple[int, ...]]:
    """Every tensor of the model by its name in safetensors."""
    layers = {f"model.layers.{i}.{name}.weight": sizes for i in range(LAYERS) for name, sizes in _LAYER.values()}
    return {"model.embed_tokens.weight": (len(TOKENS), HIDDEN), "model.norm.weight": (HIDDEN,), **layers}


def tiny_gguf(
    path: Path,
    numbers: Mapping[str, Any] = {},
    sizes: Mapping[str, tuple[int, ...] | None] = {},
    kinds: Mapping[str, GGMLQuantizationType] = {},
    values: Mapping[str, float] = {},
    tensors_each: int = 0,
    architecture: str = "llama",
    tokenizer: Mapping[str, str] = {},
) -> Path:
    """A GGUF file of the Llama family in Q8_0, with some things changed; the first of several if it is split.

    Args:
        tokenizer: other texts under `tokenizer.ggml.`, such as `model` and `pre`.
        numbers: other metadata, under the architecture's name.
        sizes: other sizes of tensors by name; None leaves one out.
        kinds: other formats of tensors.
        values: tensors that hold this number throughout.
        tensors_each: splits the model into files of so many tensors.
    """
    writer = GGUFWriter(path, architecture, split_max_tensors=tensors_each)
    for key, value in {**NUMBERS, **numbers}.items():
        _adder(writer, value)(f"{architecture}.{key}", value)
    writer.add_string("general.name", "tiny")
    for key, text in {"model": "gpt2", **tokenizer}.items():
        writer.add_string(f"tokenizer.ggml.{key}", text)
    writer.add_token_list(TOKENS)
    writer.add_token_types([3] * len(SPECIAL) + [1] * (len(TOKENS) - len(SPECIAL)))
    writer.add_token_merges(MERGES)
    writer.add_eos_token_id(0)
    writer.add_bos_token_id(0)
    writer.add_chat_template(TEMPLATE)
    for name, shape in {**gguf_sizes(), **sizes}.items():
        if shape is None:
            continue
        array = np.full(shape, values[name], np.float32) if name in values else _array(name, shape)
        kind = kinds.get(name, GGMLQuantizationType.F32 if len(shape) == 1 else GGMLQuantizationType.Q8_0)
        with np.errstate(all="ignore"):  # numbers that are not finite are there on purpose
            writer.add_tensor(name, quantize(array, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return min(path.parent.glob(f"{path.stem}-*.gguf")) if tensors_each else path


def _adder(writer: GGUFWriter, value: Any) -> Callable[[str, Any], None]:
    if isinstance(value, str):
        return writer.add_string
    if isinstance(value, list):
        return writer.add_array
    if isinstance(value, float):
        return writer.add_float32
    return writer.add_int64 if value < 0 else writer.add_uint32


def tiny_folder(
    path: Path,
    config: Mapping[str, Any] = {},
    sizes: Mapping[str, tuple[int, ...] | None] = {},
    dtypes: Mapping[str, Any] = {},
    values: Mapping[str, float] = {},
) -> Path:
    """The same model as a folder of safetensors, with some things changed."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps({**CONFIG, **config}))
    write_tokenizer(path)
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": [0, 2]}))
    tensors = {
        name: (np.full(shape, values[name]) if name in values else _array(name, shape)).astype(
            dtypes.get(name, np.float32)
        )
        for name, shape in {**hub_sizes(), **sizes}.items()
        if shape is not None
    }
    save_file(tensors, path / "model.safetensors")
    return path


def add_tiny_pair(folder: Path) -> Path:
    """Add the pair `tiny` to the user's models.toml, its target in this folder; a file with 80 prompts for it."""
    weights = tiny_folder(folder / "weights", {"max_position_embeddings": 2048})
    config_dir().mkdir(parents=True)
    (config_dir() / "models.toml").write_text(
        f'[models.tiny-model]\nsources = [{{ path = "{weights}" }}]\nlicence = "Apache-2.0"\n'
        '[pairs.tiny]\ntarget = "tiny-model"\n'
    )
    prompts = folder / "prompts.txt"
    prompts.write_text("\n".join(f"say hello {number} times" for number in range(80)))
    return prompts


def write_tokenizer(path: Path) -> None:
    """The tokenizer's files, into this folder."""
    (path / "tokenizer.json").write_text(json.dumps(tokenizer()))
    about = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": SPECIAL[0], "chat_template": TEMPLATE}
    (path / "tokenizer_config.json").write_text(json.dumps(about))


def tokenizer() -> dict[str, Any]:
    """The tokenizer.json of the model: byte-level BPE with three merges."""
    added = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "added_tokens": [{"id": number, "content": text, **added} for number, text in enumerate(SPECIAL)],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "vocab": {text: number for number, text in enumerate(TOKENS)},
            "merges": [merge.split(" ") for merge in MERGES],
        },
    }


def _array(name: str, shape: tuple[int, ...]) -> np.ndarray[Any, np.dtype[np.float32]]:
    if len(shape) <= 1:
        return np.ones(shape, np.float32)
    random = np.random.default_rng(len(name))
    return (random.standard_normal(shape) * shape[-1] ** -0.5).astype(np.float32)
