"""Models of other programs are found where those keep them, and what is damaged or hostile there is passed over."""

from __future__ import annotations

import os

import pytest
from models_without_weights import folder, gguf
from other_programs import hub, manifest, ollama, surroundings

from specchat.models.hub.found_models import DEEPEST, find_models

LIBRARY = "registry.ollama.ai/library"


def found(here):
    return {model.name: (model.path, model.program) for model in find_models(here)}


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        (f"{LIBRARY}/llama3.2/3b", "llama3.2:3b"),
        ("registry.ollama.ai/someone/name/latest", "someone/name:latest"),
        ("hf.co/owner/name/Q4_K_M", "hf.co/owner/name:Q4_K_M"),
    ],
)
@pytest.mark.parametrize("place", ["home", "service", "variable"])
def test_models_of_ollama_are_named_as_ollama_names_them(tmp_path, name, shown, place):
    home = tmp_path / "home"
    store = {
        "home": home / ".ollama" / "models",
        "service": home / "root" / "usr" / "share" / "ollama" / ".ollama" / "models",
        "variable": tmp_path / "elsewhere",
    }[place]
    file = ollama(store, name, gguf(tmp_path / "m.gguf"))
    environment = {"OLLAMA_MODELS": str(store)} if place == "variable" else {}
    assert found(surroundings(home, **environment)) == {shown: (file, "Ollama")}


def test_the_parameters_of_ollama_are_how_a_chat_samples(tmp_path):
    store = tmp_path / ".ollama" / "models"
    ollama(
        store, f"{LIBRARY}/m/1b", gguf(tmp_path / "m.gguf"), temperature=0.6, repeat_penalty=1.1, stop=["x"], top_k="9"
    )
    (model,) = find_models(surroundings(tmp_path))
    assert model.sampling == {"temperature": 0.6, "repetition_penalty": 1.1}


def test_the_hubs_cache_gives_folders_and_single_files(tmp_path):
    cache = tmp_path / ".cache" / "huggingface" / "hub"
    whole = folder(tmp_path / "whole")
    safetensors = hub(cache, "Qwen/Qwen3-0.6B", *whole.iterdir())
    single = hub(cache, "owner/x-GGUF", gguf(tmp_path / "x.Q4_0.gguf"))
    hub(cache, "owner/unfinished", whole / "config.json")
    assert found(surroundings(tmp_path)) == {
        "Qwen/Qwen3-0.6B": (safetensors, "hub cache"),
        "owner/x-GGUF/x.Q4_0.gguf": (single / "x.Q4_0.gguf", "hub cache"),
    }


@pytest.mark.parametrize("ref", ["../../../../etc", "main", "", "\x00" * 40])
def test_a_reference_that_is_no_version_leads_nowhere_else(tmp_path, ref):
    snapshot = hub(tmp_path / "hub", "owner/x", gguf(tmp_path / "x.gguf"), ref=ref)
    assert found(surroundings(tmp_path, HF_HUB_CACHE=str(tmp_path / "hub"))) == {
        "owner/x/x.gguf": (snapshot / "x.gguf", "hub cache")
    }


@pytest.mark.parametrize(
    ("place", "program"),
    [
        (".lmstudio/models/publisher/repository", "LM Studio"),
        (".cache/lm-studio/models/publisher/repository", "LM Studio"),
        ("elsewhere/models/publisher/repository", "LM Studio"),
        (".cache/llama.cpp", "llama.cpp"),
        ("Library/Caches/llama.cpp", "llama.cpp"),
        ("Library/Application Support/nomic.ai/GPT4All", "GPT4All"),
        ("Downloads", "~/Downloads"),
        ("models/deeper", "~/models"),
    ],
)
def test_gguf_files_are_found_in_the_usual_places(tmp_path, place, program):
    (tmp_path / ".lmstudio-home-pointer").write_text(f"{tmp_path / 'elsewhere'}\n")
    (tmp_path / place).mkdir(parents=True)
    file = gguf(tmp_path / place / "a.gguf")
    assert found(surroundings(tmp_path)) == {"a": (file, program)}


def test_folders_too_deep_links_in_circles_and_pipes_are_passed_over(tmp_path):
    place = tmp_path / "Downloads"
    deep = place.joinpath(*map(str, range(DEEPEST + 1)))
    deep.mkdir(parents=True)
    gguf(deep / "deep.gguf")
    (place / "0" / "circle").symlink_to(place)
    os.mkfifo(place / "pipe.gguf")
    (place / "gone.gguf").symlink_to(place / "nowhere")
    file = gguf(place / "0" / "here.gguf")
    assert found(surroundings(tmp_path)) == {"here": (file, "~/Downloads")}


@pytest.mark.parametrize(
    "content",
    [
        "", "[]", "{", "[" * 100_000, '{"layers": 7}', '{"layers": [7, {}, {"mediaType": 3}]}',
        '{"layers": [{"mediaType": "application/vnd.ollama.image.model"}]}',
        '{"layers": [{"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:../../../secret"}]}',
        '{"layers": [{"mediaType": "application/vnd.ollama.image.model", "digest": ["sha256:0"]}]}',
        '{"layers": [{"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:' + "0" * 64 + '"}]}',
        " " * (1 << 20) + "{}",
    ],
    ids=range(11),
)  # fmt: skip
def test_a_manifest_that_says_nothing_sensible_names_no_model(tmp_path, content):
    store = tmp_path / ".ollama" / "models"
    gguf(tmp_path / "secret")
    manifest(store, f"{LIBRARY}/bad/1b", content)
    file = ollama(store, f"{LIBRARY}/good/1b", gguf(tmp_path / "m.gguf"))
    assert found(surroundings(tmp_path)) == {"good:1b": (file, "Ollama")}


@pytest.mark.parametrize("value", ["", "relative", "a\x00b", "/nowhere/at/all", "~/none"])
def test_a_variable_that_names_no_folder_changes_nothing(tmp_path, value):
    assert found(surroundings(tmp_path, OLLAMA_MODELS=value, HF_HOME=value, LLAMA_CACHE=value)) == {}
