"""GGUF files whose architecture or way of splitting text transformers does not know."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from contracts.models import V
from gguf import GGUFWriter
from llama_stand_in import LlamaStandIn
from tiny_models import TOKENS, tiny_gguf

from specchat.config import ModelSpec, PathSource
from specchat.core.tree import TokenTree
from specchat.errors import ModelError, SpecchatError, WeightsError
from specchat.models.backends import llama_cpp, llama_library
from specchat.models.backends.scripted import random_says
from specchat.models.model_loading import Loaded, load_model, load_tokenizer
from specchat.models.weights.transformers_cache import HEADER_ALONE, SPLITS

FOREIGN = ("granite", "command-r", "cohere2", "glm4", "exaone4", "olmo2", "phi2", "internlm2", "mistral3", "deepseek2")


def loaded(path: Path, backend: str = "auto", dtype: str = "float32") -> Loaded:
    spec = ModelSpec("m", (PathSource(path),))
    return load_model(spec, path, torch.device("cpu"), dtype, backend=backend, cards=False)


@pytest.mark.parametrize("architecture", FOREIGN)
def test_the_tokenizer_of_an_architecture_that_transformers_does_not_read(architecture: str, tmp_path: Path) -> None:
    tokenizer, ends = load_tokenizer("m", tiny_gguf(tmp_path / "m.gguf", architecture=architecture))
    assert tokenizer("hello").input_ids == [TOKENS.index("hell"), TOKENS.index("o")]
    assert tokenizer.decode(tokenizer("say hello 12").input_ids) == "say hello 12"
    assert tokenizer("<|im_end|>").input_ids == [2]
    assert ends == {0, 2}


def test_llama_cpp_runs_it_and_nothing_else_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tiny_gguf(tmp_path / "m.gguf", architecture="command-r", tokenizer={"pre": "command-r"})
    for backend in ("auto", "own", "transformers"):
        with pytest.raises(
            ModelError, match="GGUF files of architecture command-r; nearest that works: backend = llama"
        ):
            loaded(path, backend)
    for module in (llama_library, llama_cpp):
        monkeypatch.setattr(module, "library", lambda: LlamaStandIn(random_says(V, seed=5), V))
    monkeypatch.setattr(llama_library, "has_card", lambda: False)
    model = loaded(path, "llama.cpp")
    assert model.eos_ids == {0, 2}
    assert model.tokenizer("hello").input_ids == [TOKENS.index("hell"), TOKENS.index("o")]
    assert load_tokenizer("m", path)[0]("hello").input_ids == [TOKENS.index("hell"), TOKENS.index("o")]


def test_our_decoder_runs_a_file_of_its_own_families_that_transformers_does_not_read(tmp_path: Path) -> None:
    """Of the four layers of SmolLM3 the last has no rotation, which no header says; so it is Llama's but for that."""
    numbers = {"block_count": 4}
    tiny = {f"blk.{layer}.{name}": sizes for layer in (2, 3) for name, sizes in layer_sizes().items()}
    said = []
    for architecture in ("smollm3", "llama"):
        path = tiny_gguf(tmp_path / f"{architecture}.gguf", numbers, tiny, architecture=architecture)
        model = loaded(path).model
        assert model.layers == 4
        model.prefill([5, 6, 7])
        said.append(model.read(TokenTree(8, model.vocab_size).freeze()).logits)
        model.prefill([])
        said.append(model.read(TokenTree(8, model.vocab_size).freeze()).logits)
    torch.testing.assert_close(said[1], said[3])  # a first token is not rotated
    assert (said[0] - said[2]).abs().max() > 1e-3


def layer_sizes() -> dict[str, tuple[int, ...]]:
    from tiny_models import gguf_sizes

    return {name.removeprefix("blk.0."): sizes for name, sizes in gguf_sizes().items() if name.startswith("blk.0.")}


TEXT = "It's 2024\n\n  caf\u00e9, ok"
WORDS: dict[str, list[str]] = {
    "smollm": ["It", "'s", " ", "2", "0", "2", "4", "\n\n ", " café", ",", " ok"],
    "stablelm2": ["It", "'s", " ", "2", "0", "2", "4", "\n\n", " ", " café", ",", " ok"],
    "glm4": ["It", "'s", " ", "202", "4", "\n\n", " ", " café", ",", " ok"],
    "deepseek-v3": ["It", "'s", " ", "202", "4", "\n\n", " ", " café", ",", " ok"],
    "deepseek-coder": ["It", "'", "s", " ", "2", "0", "2", "4", "\n", "\n", " ", " café", ",", " ok"],
    "unknown": ["It", "'s", " 2024", "\n\n ", " café", ",", " ok"],
}


@pytest.mark.parametrize("pre", WORDS)
def test_text_is_cut_as_the_header_says(pre: str, tmp_path: Path) -> None:
    tokenizer, _ = load_tokenizer("m", tiny_gguf(tmp_path / "m.gguf", tokenizer={"pre": pre}))
    assert pieces(tokenizer) == WORDS[pre]
    assert tokenizer.decode(tokenizer(TEXT).input_ids) == TEXT


def pieces(tokenizer: Any) -> list[str]:
    return [TEXT[start:end] for _, (start, end) in tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str(TEXT)]


def test_all_patterns_are_read_by_the_library(tmp_path: Path) -> None:
    for pre in SPLITS:
        path = tiny_gguf(tmp_path / f"{pre}.gguf", tokenizer={"pre": pre}, architecture="granite")
        assert "".join(pieces(load_tokenizer("m", path)[0])) == TEXT


@pytest.mark.parametrize(
    ("numbers", "tokenizer", "line"),
    [
        ({}, {"model": "rwkv"}, "stating tokenizer 'rwkv'"),
        ({"embedding_length": -3}, {}, "hidden_size = -3"),
        ({"block_count": 1 << 30}, {}, "num_hidden_layers = 1073741824"),
        ({"attention.head_count": "many"}, {}, "num_attention_heads = 'many'"),
    ],
)
def test_a_header_that_cannot_be_used_is_one_line(
    numbers: dict[str, Any], tokenizer: dict[str, str], line: str, tmp_path: Path
) -> None:
    path = tiny_gguf(tmp_path / "m.gguf", numbers, architecture="granite", tokenizer=tokenizer)
    with pytest.raises(SpecchatError) as refused:
        load_tokenizer("m", path)
    assert line in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("kind", "name", "value", "line"),
    [
        ("gpt2", "tokens", None, "tokenizer.ggml.tokens = missing, and a list of texts"),
        ("gpt2", "tokens", "a", "tokenizer.ggml.tokens = 'a', and a list of texts"),
        ("gpt2", "tokens", [1, 2], "tokenizer.ggml.tokens = a list of 2 numbers, and a list of texts"),
        ("gpt2", "merges", None, "tokenizer.ggml.merges = missing, and a list of texts"),
        ("gpt2", "merges", [1, 2], "tokenizer.ggml.merges = a list of 2 numbers, and a list of texts"),
        ("llama", "merges", None, f"tokenizer.ggml.scores = missing, and a list of {len(TOKENS)} numbers"),
        (
            "t5",
            "scores",
            [0.5, 2.0],
            f"tokenizer.ggml.scores = a list of 2 numbers, and a list of {len(TOKENS)} numbers",
        ),
    ],
)
def test_a_tokenizer_without_its_lists_is_refused_by_their_keys(
    kind: str, name: str, value: Any, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def add(writer: GGUFWriter, _: Any) -> None:
        if value is not None:
            write = writer.add_string if isinstance(value, str) else writer.add_array
            write(f"tokenizer.ggml.{name}", value)

    monkeypatch.setattr(GGUFWriter, "add_token_list" if name == "tokens" else "add_token_merges", add)
    path = tiny_gguf(tmp_path / "m.gguf", tokenizer={"model": kind})
    with pytest.raises(WeightsError) as refused:
        load_tokenizer("m", path)
    assert str(refused.value).startswith(f"{path}: {line}")


@pytest.mark.parametrize("said", [{}, {"model_type": "zzz"}])
def test_a_folder_is_never_taken_for_what_was_made_of_a_header(said: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({HEADER_ALONE: True, **said}), encoding="utf-8")
    with pytest.raises(SpecchatError) as refused:
        load_tokenizer("m", tmp_path)
    assert f"{tmp_path} cannot be used" in str(refused.value)
    assert "\n" not in str(refused.value)
