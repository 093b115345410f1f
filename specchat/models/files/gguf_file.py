"""GGUF files through transformers: configuration and tokenizer converted once, weights dequantised at every load."""

from __future__ import annotations

import hashlib
import inspect
import os
import shutil
from pathlib import Path
from typing import Any

import torch

from specchat.config import cache_dir, private_dir


def converted_folder(path: Path) -> Path:
    """A folder with the configuration and the tokenizer of a GGUF file, in transformers' own form.

    Reading a GGUF header takes transformers seconds each time, so it is done once and kept in the cache, under a
    name that changes when the file does.
    """
    about = path.stat()
    key = hashlib.blake2b(f"{path}|{about.st_size}|{about.st_mtime_ns}".encode(), digest_size=8).hexdigest()
    folder = cache_dir() / "converted" / f"{path.stem}-{key}"
    if not folder.is_dir():
        _convert(path, folder)
    return folder


def load_network(path: Path, config: Any, dtype: torch.dtype) -> Any:
    """The network a GGUF file holds, its weights dequantised and rounded to `dtype`."""
    from transformers import AutoModelForCausalLM
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    network_class = AutoModelForCausalLM._model_mapping[type(config)]
    with torch.device("meta"):
        empty = network_class(config)
    arguments: dict[str, Any] = {"return_tensors": True, "model_to_load": empty}
    if "torch_dtype" in inspect.signature(load_gguf_checkpoint).parameters:
        arguments["torch_dtype"] = dtype  # rounds tensor by tensor, which keeps the peak low
    tensors = load_gguf_checkpoint(str(path), **arguments)["tensors"]
    return network_class.from_pretrained(
        None, config=config, state_dict=tensors, dtype=dtype, attn_implementation="sdpa"
    )


def _convert(path: Path, folder: Path) -> None:
    from transformers import AutoConfig, AutoTokenizer

    where = {"gguf_file": path.name, "local_files_only": True, "trust_remote_code": False}
    unfinished = folder.with_name(f"{folder.name}.{os.getpid()}.new")
    private_dir(unfinished)
    try:
        AutoConfig.from_pretrained(path.parent, **where).save_pretrained(unfinished)
        AutoTokenizer.from_pretrained(path.parent, **where).save_pretrained(unfinished)
        if not folder.is_dir():
            os.replace(unfinished, folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
