"""Weights from the model hub: what is taken of a repository, and what is refused."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fake_hub import fake_hub
from wheel_files import BODY, ROOT, everything_below, whole

from specchat.config import HubSource, ModelFile, ModelSpec, cache_dir, load_catalog
from specchat.config.catalog import users_models
from specchat.errors import WeightsError
from specchat.models.hub import fetching, model_state
from specchat.models.hub.model_state import read_manifest, write_manifest

HUB_FILES = {
    "config.json": b"{}",
    "model.safetensors": BODY,
    "tokenizer.json": b"[]",
    "pytorch_model.bin": b"pickle",
    "modeling.py": b"raise SystemExit",
    "onnx/model.safetensors": b"elsewhere",
    "consolidated.safetensors": b"again",
    "x.gguf": BODY,
}


@pytest.fixture
def hub():
    with fake_hub(HUB_FILES) as served:
        yield served


HUB_FETCH = """
from specchat.config.values import *
from specchat.errors import WeightsError
from specchat.models.hub import fetching, model_state
import sys
try:
    print(fetching.fetch(eval(sys.argv[1])))
except WeightsError as error:
    print("refused:", error)
assert "torch" not in sys.modules
"""


def fetch_from(endpoint: str, spec: ModelSpec) -> str:
    """The fetch in a process of its own: the hub's client reads its address once, when it is imported."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "HF_ENDPOINT": endpoint, "HF_HUB_DISABLE_XET": "1"}
    command = [sys.executable, "-c", HUB_FETCH, repr(spec)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip()


def test_a_repository_gives_its_safetensors_and_what_belongs_to_them_and_nothing_else(hub):
    handler, endpoint = hub
    spec = ModelSpec("h", (HubSource("o/r"),))
    folder = cache_dir() / "models" / "h"
    assert fetch_from(endpoint, spec) == str(folder)
    names = ["config.json", "model.safetensors", "tokenizer.json"]
    assert [n for n in everything_below(folder) if not n.endswith(".verified.json")] == [
        ".files.json",
        "config.json",
        "model.safetensors",
        "tokenizer.json",
    ]
    assert model_state.state(spec).kind == "ready"
    assert [file.name for file in fetching.check(spec)] == names
    asked = len(handler.asked)
    assert fetch_from(endpoint, spec) == str(folder)
    assert len(handler.asked) == asked, "a second fetch sends no request"


@pytest.mark.parametrize("name", ["l" * 300 + ".safetensors", "a\0.safetensors", "../x.safetensors", "modeling.py"])
def test_a_list_of_files_that_was_damaged_says_nothing(name):
    spec = ModelSpec("h", (HubSource("o/r"),))
    write_manifest(spec, (ModelFile("model.safetensors", 3), ModelFile(name, 3)))
    assert read_manifest(spec) == ()
    assert model_state.state(spec).kind == "partial"
    with pytest.raises(WeightsError, match="specchat models pull h"):
        fetching.check(spec)


def test_a_copied_repository_is_verified_without_a_request(hub):
    handler, endpoint = hub
    spec = ModelSpec("h", (HubSource("o/r"),))
    folder = Path(fetch_from(endpoint, spec))
    for file in folder.iterdir():
        os.utime(file, ns=(1, 1))
    asked = len(handler.asked)
    assert model_state.state(spec).kind == "unverified"
    assert fetch_from(endpoint, spec) == str(folder)
    assert len(handler.asked) == asked
    assert model_state.state(spec).kind == "ready"
    body = (folder / "config.json").read_bytes()
    (folder / "config.json").write_bytes(body[::-1])  # as long as before, and something else
    assert fetch_from(endpoint, spec) == str(folder)
    assert len(handler.asked) > asked
    assert (folder / "config.json").read_bytes() == body


def test_one_gguf_file_of_a_repository_is_a_model_of_its_own(hub):
    _, endpoint = hub
    spec = ModelSpec("h", (HubSource("o/r", "x.gguf"),), (ModelFile("x.gguf"),))
    assert fetch_from(endpoint, spec) == str(cache_dir() / "models" / "h" / "x.gguf")
    assert (cache_dir() / "models" / "h" / "x.gguf").read_bytes() == BODY


def test_a_split_gguf_file_is_fetched_whole():
    users_models().parent.mkdir(parents=True, exist_ok=True)
    users_models().write_text('[models.h]\nsources = [{ hub = "o/r", file = "gguf/y-00001-of-00002.gguf" }]\n')
    spec = load_catalog().model("h")
    with fake_hub({f"gguf/y-0000{number}-of-00002.gguf": BODY for number in (1, 2)}) as (_, endpoint):
        first = fetch_from(endpoint, spec)
    folder = cache_dir() / "models" / "h"
    assert first == str(folder / "y-00001-of-00002.gguf")
    assert (folder / "y-00002-of-00002.gguf").read_bytes() == BODY


def test_the_hubs_own_checksum_decides(hub):
    handler, endpoint = hub
    handler.lie = "0" * 64
    said = fetch_from(endpoint, ModelSpec("h", (HubSource("o/r"),)))
    assert f"wrong file for model.safetensors, deleted: expected SHA-256 {'0' * 64}" in said
    assert not (cache_dir() / "models" / "h" / "model.safetensors").exists()


@pytest.mark.parametrize(
    ("source", "line"),
    [
        (HubSource("o/nothing"), "does not exist, or needs a login"),
        (HubSource("o/r", "y.gguf"), "o/r has no file 'y.gguf'; did you mean 'x.gguf'?"),
    ],
)
def test_what_the_hub_does_not_have_is_one_line(hub, source, line):
    files = (ModelFile(source.file),) if source.file else ()
    said = fetch_from(hub[1], ModelSpec("h", (source,), files))
    assert line in said
    assert "\n" not in said


def test_without_a_network_the_hub_gives_up_at_once_and_a_mirror_serves(index):
    spec = whole(index)
    both = ModelSpec("m", (HubSource("o/r", "m.gguf"), *spec.sources), spec.files)
    began = time.monotonic()
    assert fetch_from("http://127.0.0.1:9", both).endswith("m.gguf")
    assert time.monotonic() - began < 15
    said = fetch_from("http://127.0.0.1:9", ModelSpec("h", (HubSource("o/r"),)))
    assert said == "refused: h could not be fetched: the model hub cannot be reached for o/r"


def test_weights_need_neither_torch_nor_rich():
    script = "import sys, specchat.models.hub; print({'torch', 'rich', 'huggingface_hub'} & set(sys.modules))"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    assert subprocess.check_output([sys.executable, "-c", script], env=environment, text=True).strip() == "set()"
