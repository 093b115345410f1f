"""What transformers read of a model's files is kept: the same values, and transformers is not asked again."""

import json
import os
import subprocess
import sys
import time

import pytest
import torch
import transformers
from test_shape import ROTATIONS
from tiny_models import tiny_folder
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from specchat.config import ModelSpec, PathSource, cache_dir
from specchat.models.decoder.shape import Shape, unsupported
from specchat.models.model_loading import known_config, load_model, open_config, usable_context
from specchat.models.weights import transformers_cache as module
from specchat.models.weights.families import FAMILIES
from specchat.models.weights.tokenizer_files import end_tokens, open_tokenizer
from specchat.models.weights.transformers_cache import RememberedConfig, remember_config, remembered_config

OWN = {
    "qwen2": {"sliding_window": 32, "use_sliding_window": False},
    "mistral": {"sliding_window": 12},
    "smollm3": {"no_rope_layers": [1, 0]},
    "gemma3_text": {"sliding_window": 12, "layer_types": ["sliding_attention", "full_attention"]},
}


def a_folder(folder, family, **more):
    """A configuration as transformers writes it, and a tokenizer."""
    about = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = transformers.AutoConfig.for_model(family, **about, eos_token_id=1, **OWN.get(family, {}) | more)
    config.save_pretrained(folder)
    words = Tokenizer(WordLevel({"a": 0, "</s>": 1}, unk_token="a"))
    transformers.PreTrainedTokenizerFast(tokenizer_object=words, eos_token="</s>").save_pretrained(folder)
    return folder


def remembered(folder):
    """The configuration by transformers, and as it is kept."""
    _, config = open_config(folder)
    remember_config(folder, config, open_tokenizer(folder))
    kept = remembered_config(folder)
    assert isinstance(kept, RememberedConfig)
    return config, kept


def sizes(config):
    shape = Shape.of(config)
    kinds = [
        (kind.window, None if kind.frequencies is None else kind.frequencies.tolist()) for kind in shape.attention_kinds
    ]
    return {**shape.__dict__, "attention_kinds": kinds}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_read_as_transformers_reads_it(family, tmp_path):
    config, kept = remembered(a_folder(tmp_path, family))
    assert unsupported(kept) is None
    assert sizes(kept) == sizes(config)
    spec, tokenizer = ModelSpec("m", (PathSource(tmp_path),)), open_tokenizer(tmp_path)
    assert usable_context(spec, kept, own=True) == usable_context(spec, config, own=True)
    assert end_tokens(tmp_path, kept, tokenizer) == end_tokens(tmp_path, config, tokenizer) >= {1}


@pytest.mark.parametrize("kind", ROTATIONS)
def test_every_rotation_is_the_one_of_transformers(kind, tmp_path):
    rotation = {"rope_theta": 500000.0, **ROTATIONS[kind]}
    config, kept = remembered(a_folder(tmp_path, "llama", rope_parameters=rotation))
    assert sizes(kept) == sizes(config)


def test_the_tokenizer_is_made_by_the_class_that_was_chosen(tmp_path):
    _, kept = remembered(a_folder(tmp_path, "qwen2"))
    chosen, made = open_tokenizer(tmp_path), open_tokenizer(tmp_path, kept.tokenizer_made_by)
    assert type(chosen) is type(made)
    assert chosen.backend_tokenizer.to_str() == made.backend_tokenizer.to_str()


@pytest.mark.parametrize("name", ["", "AutoModel", "os", "../x", "LlamaConfig", "no_such_class"])
def test_a_class_that_makes_no_tokenizer_is_not_used(name, tmp_path):
    assert open_tokenizer(a_folder(tmp_path, "llama"), name).encode("a") == [0]


CHANGES = {
    "another byte": lambda folder: (folder / "config.json").write_text((folder / "config.json").read_text() + "\n"),
    "another tokenizer": lambda folder: (folder / "tokenizer_config.json").write_text("{}"),
    "a file more": lambda folder: (folder / "tokenizer.model").write_bytes(b""),
}


@pytest.mark.parametrize("change", CHANGES)
def test_other_files_are_read_anew(change, tmp_path):
    remembered(a_folder(tmp_path, "llama"))
    CHANGES[change](tmp_path)
    assert remembered_config(tmp_path) is None


def test_another_transformers_reads_them_anew(tmp_path, monkeypatch):
    remembered(a_folder(tmp_path, "llama"))
    monkeypatch.setattr(module, "version", lambda name: "0.0")
    assert remembered_config(tmp_path) is None


DAMAGE = {
    "cut": lambda said: said[: len(said) // 2],
    "no object": lambda said: "[]",
    "no tokenizer": lambda said: json.dumps({**json.loads(said), "specchat_tokenizer": ["x"]}),
    "no family": lambda said: json.dumps({**json.loads(said), "model_type": None}),
    "another family": lambda said: json.dumps({**json.loads(said), "model_type": "mamba"}),
    "a number out of bounds": lambda said: json.dumps({**json.loads(said), "num_hidden_layers": -1}),
    "keys lacking": lambda said: json.dumps({"model_type": "llama", "specchat_tokenizer": "x"}),
    "a key lacking": lambda said: json.dumps({k: v for k, v in json.loads(said).items() if k != "eos_token_id"}),
    "a rotation cut": lambda said: json.dumps({**json.loads(said), "rope_parameters": {"rope_type": "linear"}}),
    "a number changed": lambda said: json.dumps({**json.loads(said), "num_hidden_layers": 3}),
    "a rotation of another kind": lambda said: json.dumps({**json.loads(said), "rope_parameters": 3}),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_what_cannot_be_used_is_asked_of_transformers(damage, tmp_path):
    remembered(a_folder(tmp_path, "llama"))
    (file,) = (cache_dir() / "configurations").iterdir()
    file.write_text(DAMAGE[damage](file.read_text()))
    _, config = known_config(tmp_path)
    assert isinstance(config, transformers.LlamaConfig)


def test_the_newest_are_kept_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_MOST", 3)
    folder = a_folder(tmp_path, "llama")
    _, config = open_config(folder)
    tokenizer, kept = open_tokenizer(folder), cache_dir() / "configurations"
    kept.mkdir(parents=True)
    for age in range(5):
        (kept / f".{age}.json.x.new").write_text("{")
        os.utime(kept / f".{age}.json.x.new", (age, age))
    remember_config(folder, config, tokenizer)
    assert remembered_config(folder) is not None
    assert {file.name for file in kept.iterdir()} > {".3.json.x.new", ".4.json.x.new"}
    assert len(list(kept.iterdir())) == 3


def test_what_cannot_be_removed_or_is_of_the_future_keeps_no_new_one_out(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_MOST", 3)
    folder = a_folder(tmp_path, "llama")
    _, config = open_config(folder)
    kept = cache_dir() / "configurations"
    (kept / "folder").mkdir(parents=True)
    (kept / "lost").symlink_to(kept / "nowhere")
    os.utime(kept / "folder", (1, 1))
    os.utime(kept / "lost", (0, 0), follow_symlinks=False)
    for hour in range(4):
        (kept / f"{hour}.json").write_text("{}")
        os.utime(kept / f"{hour}.json", (time.time() + 3600 * hour + 3600,) * 2)
    remember_config(folder, config, open_tokenizer(folder))
    assert remembered_config(folder) is not None
    names = {file.name for file in kept.iterdir()}
    assert names > {"2.json", "3.json", "folder"}
    assert len(names) == 4


def test_a_cache_that_cannot_be_written_costs_time_only(tmp_path, monkeypatch):
    def full(file, **how):
        raise OSError(28, "No space left on device")

    folder = a_folder(tmp_path, "llama")
    monkeypatch.setattr(module, "replacing", full)
    remember_config(folder, open_config(folder)[1], open_tokenizer(folder))
    assert remembered_config(folder) is None


def test_transformers_runs_what_our_own_decoder_ran_before(tmp_path):
    folder = tiny_folder(tmp_path / "model")
    spec, here = ModelSpec("m", (PathSource(folder),)), torch.device("cpu")
    kernels = [
        load_model(spec, folder, here, "float32", backend=backend).kernels for backend in ("own", "transformers")
    ]
    assert kernels == ["torch", "transformers"]


def test_a_model_is_loaded_again_without_what_transformers_needs_for_configurations(preloaded, tmp_path):
    folder = tiny_folder(tmp_path / "model")
    first = load_model(ModelSpec("m", (PathSource(folder),)), folder, torch.device("cpu"), "int4", kernels="torch")
    program = f"""
import sys
from pathlib import Path
for name in [name for name in sys.modules if name.startswith("transformers.models.llama")]:
    del sys.modules[name]
import torch
from specchat.config import ModelSpec, PathSource
from specchat.models.model_loading import load_model
folder = Path({str(folder)!r})
again = load_model(ModelSpec("m", (PathSource(folder),)), folder, torch.device("cpu"), "int4", kernels="torch")
print(again.tokenizer.encode("hello"), sorted(again.eos_ids))
assert not {{"torch._dynamo", "transformers.models.llama"}} & sys.modules.keys()
"""
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout == f"{first.tokenizer.encode('hello')} {sorted(first.eos_ids)}\n"
