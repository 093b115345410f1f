"""Pairs of one's own from a repository of the hub: looked at before they are fetched."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from fake_hub import fake_hub
from models_without_weights import folder, gguf
from test_own_pairs import ROOT, add, run

from specchat.cli.pair_states import judged, known_pairs
from specchat.config import (
    HubSource,
    ModelFile,
    load_catalog,
    users_models,
)
from specchat.errors import WeightsError
from specchat.models.hub import repositories as hub

pytestmark = pytest.mark.usefixtures("preloaded")


class FakeHub:
    """A repository without a network: its listing, and files that lie in a folder."""

    def __init__(self, place: Path, names: dict[str, int]) -> None:
        self.place = place
        self.listing = hub.Listing("o/r", "c" * 40, {name: ModelFile(name, size) for name, size in names.items()})

    def list_repository(self, source: HubSource) -> hub.Listing:
        if source.repo != "o/r":
            raise WeightsError(f"hub repository {source.repo} does not exist, or needs a login: `hf auth login`")
        return self.listing

    def fetch(self, listing: hub.Listing, path: str, parts: Path, meter: object) -> Path:
        return self.place / path


@pytest.fixture
def a_hub(monkeypatch):
    def install(place: Path, **sizes: int) -> None:
        names = {name.name: sizes.get(name.suffix[1:], 10) for name in place.iterdir()}
        fake = FakeHub(place, names)
        monkeypatch.setattr(hub, "list_repository", fake.list_repository)
        monkeypatch.setattr(hub, "fetch_from_hub", fake.fetch)

    return install


def test_a_repository_is_looked_at_before_it_is_fetched(a_hub, tmp_path):
    place = folder(tmp_path / "m")
    gguf(place / "beside-q4.gguf")
    a_hub(place, safetensors=2_000_000, gguf=5_000_000)
    result = run("add", "mine", "--target", "o/r")
    assert "o/r: 2.0 MB to fetch" in result.stderr
    model = load_catalog().model("r")
    assert model.sources == (HubSource("o/r"),)
    assert model.parameters == 1_000_010


@pytest.mark.parametrize(("tokens", "member"), [(["x", "y"], "cross_vocabulary"), (None, "draft_model")])
def test_a_draft_model_with_other_tokens_drafts_through_translation(a_hub, tmp_path, tokens, member):
    a_hub(folder(tmp_path / "m", *([tokens] if tokens else [])))
    result = run("add", "mine", "--target", str(gguf(tmp_path / "t.gguf")), "--draft", "o/r")
    assert result.exit_code == 0
    assert ("r drafts for t through 'cross_vocabulary'" in result.stderr) == (tokens is not None)
    pair = load_catalog().pair("mine")
    assert pair.own["method_options"] == {"merge.of": f"suffix,{member}"}
    assert judged(next(info for info in known_pairs() if info.name == "mine")).trouble == ""


def test_a_gguf_file_of_a_repository_is_named_with_it(a_hub, tmp_path):
    (tmp_path / "m").mkdir()
    a_hub(gguf(tmp_path / "m" / "x-q4.gguf").parent, gguf=5_000)
    (line,) = add("mine", "--target", "o/r")
    assert "name one of them: o/r:q4 (0.0 MB)" in line
    (line,) = add("mine", "--target", "o/r/x-q5.gguf")
    assert "did you mean 'x-q4.gguf'" in line
    assert add("mine", "--target", "o/r/x-q4.gguf") == []
    assert load_catalog().model("x-q4").sources == (HubSource("o/r", "x-q4.gguf"),)


def test_a_quantisation_names_the_file_and_those_that_do_not_fit_are_told(tmp_path, monkeypatch):
    names = {"M-Q8_0.gguf": 8_000_000_000, "M-Q4_K_M.gguf": 4_000_000_000, "mmproj-M-F16.gguf": 1_000_000}
    names |= {f"big/M-BF16-0000{number}-of-00002.gguf": 8_000_000_000 for number in (1, 2)}
    monkeypatch.setattr(hub, "list_repository", FakeHub(tmp_path, names).list_repository)
    monkeypatch.setattr("specchat.models.hub.add_pair.has_graphics_card", lambda: False)
    monkeypatch.setattr("specchat.models.hub.add_pair.free_bytes", lambda: 6_000_000_000)
    (line,) = add("mine", "--target", "o/r")
    told = (
        "o/r:Q4_K_M (4000.0 MB), o/r:Q8_0 (8000.0 MB, more than fits here), o/r:BF16 (16000.0 MB, more than fits here)"
    )
    assert line.endswith(told)
    (line,) = add("mine", "--target", "o/r:Q5_K_M")
    assert "nothing quantised as Q5_K_M: o/r:Q4_K_M (4000.0 MB)" in line
    assert add("mine", "--target", "o/r:q4_k_m", "--draft", "o/r:BF16") == []
    assert load_catalog().model("m-q4_k_m").sources == (HubSource("o/r", "M-Q4_K_M.gguf"),)
    split = load_catalog().model("m-bf16")
    assert split.sources == (HubSource("o/r", "big/M-BF16-00001-of-00002.gguf"),)
    assert [file.name for file in split.files] == ["M-BF16-00001-of-00002.gguf", "M-BF16-00002-of-00002.gguf"]


def test_a_repository_larger_than_the_disk_is_refused(a_hub, tmp_path):
    a_hub(folder(tmp_path / "m"), safetensors=10**18)
    (line,) = add("mine", "--target", "o/r")
    assert "are free on the disk" in line


def test_a_repository_that_does_not_exist_is_told(a_hub, tmp_path):
    a_hub(folder(tmp_path / "m"))
    (line,) = add("mine", "--target", "o/nothing")
    assert "o/nothing does not exist" in line


def in_a_process(endpoint: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own: the hub's client reads its address once, when it is imported."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "HF_ENDPOINT": endpoint, "HF_HUB_DISABLE_XET": "1"}
    command = [sys.executable, "-m", "specchat", "models", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_a_repository_is_added_then_fetched_and_then_fits(tmp_path):
    target = gguf(tmp_path / "t.gguf")
    files = {file.name: file.read_bytes() for file in folder(tmp_path / "m").iterdir()}
    with fake_hub(files) as (hub_seen, endpoint):
        added = in_a_process(endpoint, "add", "mine", "--target", str(target), "--draft", "o/r")
        assert added.returncode == 0, added.stderr
        assert not any("model.safetensors" in line for line in hub_seen.asked), "only what tells shape and tokens"
        pair = next(pair for pair in known_pairs() if pair.name == "mine")
        assert (pair.state, judged(pair).trouble) == ("partial", "")
        pulled = in_a_process(endpoint, "pull", "mine", "--output", "jsonl")
        assert pulled.returncode == 0, pulled.stderr
    assert next(pair for pair in known_pairs() if pair.name == "mine").state == "ready"


def test_a_repository_that_cannot_work_is_refused_by_what_it_says_of_itself(tmp_path):
    files = {file.name: file.read_bytes() for file in folder(tmp_path / "m", model_type="mamba").iterdir()}
    with fake_hub(files) as (_, endpoint):
        refused = in_a_process(endpoint, "add", "mine", "--target", "o/r")
    assert refused.returncode == 2
    assert "specchat: r is of architecture mamba, whose state cannot go back" in refused.stderr
    assert not users_models().exists()


def test_without_a_network_a_repository_is_not_added():
    refused = in_a_process("http://127.0.0.1:9", "add", "mine", "--target", "o/r")
    assert refused.returncode == 2
    assert "specchat: the model hub cannot be reached for o/r" in refused.stderr
