"""Models that consist of descriptions alone: enough to be looked at, nothing to be run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFWriter
from safetensors.numpy import save_file

TOKENS = ["<s>", "a", "b", "c"]


def gguf(path: Path, tokens: list[str] = TOKENS, architecture: str = "llama", layers: bool = True) -> Path:
    """A GGUF file with a header and two small tensors."""
    writer = GGUFWriter(path, architecture)
    writer.add_context_length(2048)
    writer.add_token_list(tokens)
    writer.add_tensor("token_embd.weight", np.zeros((4, 32), np.float32))
    if layers:
        writer.add_tensor("blk.0.attn_q.weight", np.zeros((32, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def folder(path: Path, tokens: list[str] = TOKENS, **config: Any) -> Path:
    """A folder of safetensors with one tensor that belongs to no network."""
    path.mkdir(parents=True)
    said = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "max_position_embeddings": 4096} | config
    (path / "config.json").write_text(json.dumps(said))
    (path / "tokenizer.json").write_text(json.dumps(tokenizer(tokens)))
    save_file({"x": np.zeros((10, 100), np.float16)}, path / "model.safetensors")
    return path


def tokenizer(tokens: list[str]) -> dict[str, Any]:
    """A tokenizer.json whose first token is an added one."""
    vocabulary = {token: number for number, token in enumerate(tokens) if number}
    return {"model": {"vocab": vocabulary}, "added_tokens": [{"content": tokens[0], "id": 0}]}
