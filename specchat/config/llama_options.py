"""The keys of a model's table that say how llama.cpp loads it, checked."""

from __future__ import annotations

import re
from typing import Any

from specchat.config.toml_file import TableLocation
from specchat.config.values import LlamaOptions
from specchat.errors import nearest, short

LLAMA_KEYS: dict[str, type] = {
    "gpu_layers": int,
    "tensor_split": list,
    "rpc_servers": list,
    "flash_attn": bool,
    "cache_type": str,
    "mmap": bool,
}
"""Each with the type of its value."""

CACHE_TYPES = {"f32": 0, "f16": 1, "q8_0": 8, "q5_1": 7, "q5_0": 6, "q4_1": 3, "q4_0": 2}
"""Number formats of keys and values, with llama.cpp's own number of each."""

_SERVER = re.compile(r"[\w.-]+:\d{1,5}|\[[0-9a-fA-F:]+\]:\d{1,5}", re.ASCII)


def read_llama_options(place: TableLocation, table: dict[str, Any]) -> LlamaOptions:
    """What such keys, each of its type, say.

    Raises:
        ConfigError: a value that llama.cpp could not take.
    """
    said = dict(table)
    if said.get("gpu_layers", 0) < 0:
        raise place.error("gpu_layers", f"= {short(said['gpu_layers'])} must be 0 or more; without it all layers go")
    split = said.pop("tensor_split", ())
    if not all(isinstance(share, int | float) and not isinstance(share, bool) and 0 <= share < 1e9 for share in split):
        raise place.error("tensor_split", f"= {short(split)} must hold a share for each card, such as [3, 1]")
    if split and not any(split):
        raise place.error("tensor_split", f"= {short(split)} gives no card a share")
    servers = said.pop("rpc_servers", ())
    for server in servers:
        if not isinstance(server, str) or not _SERVER.fullmatch(server):
            raise place.error("rpc_servers", f"holds {short(server)}, which is not HOST:PORT")
    cache_type = said.get("cache_type", "f16")
    if cache_type not in CACHE_TYPES:
        raise place.error(
            "cache_type", f"= {short(cache_type)} is not one of its values{nearest(cache_type, CACHE_TYPES)}"
        )
    if said.get("flash_attn") is False and cache_type not in ("f32", "f16"):
        raise place.error("flash_attn", f"= false does not go with cache_type = {cache_type!r}")
    return LlamaOptions(tensor_split=tuple(map(float, split)), rpc_servers=tuple(servers), **said)
