"""What models.toml may say of llama.cpp, and what it is refused for."""

from __future__ import annotations

import pytest

from specchat.config import config_dir, load_catalog
from specchat.config.values import LlamaOptions
from specchat.errors import ConfigError

TABLE = """
[models.m]
sources = [{ path = "/m.gguf" }]
"""


def model_of(lines: str):
    config_dir().mkdir(parents=True, exist_ok=True)
    (config_dir() / "models.toml").write_text(TABLE + lines)
    return load_catalog().model("m")


def test_keys_of_llama_cpp_are_read():
    model = model_of(
        'backend = "llama.cpp"\ngpu_layers = 20\ntensor_split = [3, 1.5]\nrpc_servers = ["box:50052"]\n'
        'flash_attn = true\ncache_type = "q8_0"\nmmap = false\n'
    )
    assert model.backend == "llama.cpp"
    assert model.llama == LlamaOptions(20, (3.0, 1.5), ("box:50052",), True, "q8_0", False)


def test_without_them_llama_cpp_decides():
    assert (model_of("").backend, model_of("").llama) == ("auto", LlamaOptions())


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('backend = "vllm"', "backend = 'vllm' is not one of its values: auto, own, transformers, llama.cpp"),
        ("gpu_layers = -1", "gpu_layers = -1 must be 0 or more"),
        ("gpu_layers = true", "gpu_layers = True is not a whole number"),
        ("gpu_layer = 1", "gpu_layer = 1 is not known here"),
        ('tensor_split = ["a"]', "must hold a share for each card"),
        ("tensor_split = [0, 0]", "gives no card a share"),
        ('rpc_servers = ["box"]', "holds 'box', which is not HOST:PORT"),
        ('cache_type = "q9"', "cache_type = 'q9' is not one of its values"),
        ('cache_type = "q8_0"\nflash_attn = false', "does not go with cache_type = 'q8_0'"),
    ],
)
def test_what_llama_cpp_could_not_take_is_refused_by_name(line, words):
    with pytest.raises(ConfigError) as refused:
        model_of(line)
    assert words in str(refused.value)
    assert "[models.m]" in str(refused.value)
