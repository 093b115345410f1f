"""`specchat models add` and `forget`: what is looked at, what is refused, what is written."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from fake_hub import fake_hub
from paper_models import folder, gguf
from typer.testing import CliRunner

from specchat.cli import app
from specchat.cli.pair_states import judged, known_pairs
from specchat.config import (
    HubSource,
    ModelFile,
    PathSource,
    config_dir,
    load_catalog,
    private_dir,
    settings_of,
    users_models,
)
from specchat.decoding.combinations import check_settings
from specchat.errors import UsageError, WeightsError
from specchat.models.fetch import hub

ROOT = Path(__file__).parents[2]


def run(*arguments: str, answer: str | None = None):
    return CliRunner().invoke(app, ["models", *arguments], input=answer)


def add(*arguments: str) -> list[str]:
    """Add a pair; the lines that say why not."""
    result = run("add", *arguments)
    assert result.exit_code in (0, 2), result.exception
    return [line for line in result.stderr.splitlines() if line.startswith("specchat:")]


def test_a_file_of_ones_own_becomes_a_pair_that_the_catalog_knows(tmp_path):
    assert add("mine", "--target", str(gguf(tmp_path / "My Model.gguf"))) == []
    catalog = load_catalog()
    pair = catalog.pair("mine")
    assert (pair.target, pair.draft, pair.yours) == ("my-model", None, True)
    model = catalog.model("my-model")
    assert model.sources == (PathSource(tmp_path / "My Model.gguf"),)
    assert (model.context_tokens, model.parameters) == (2048, 1152)
    assert settings_of(pair).drafter == "suffix"


def test_a_draft_model_is_looked_at_and_used(tmp_path):
    target, draft = gguf(tmp_path / "t.gguf"), folder(tmp_path / "d")
    assert add("mine", "--target", str(target), "--draft", str(draft), "--summary", "tiny") == []
    pair = load_catalog().pair("mine")
    assert (pair.target, pair.draft, pair.summary) == ("t", "d", "tiny")
    assert settings_of(pair).drafter == "merge"
    assert settings_of(pair).method_options == {"merge.of": "suffix,draft_model"}
    check_settings(settings_of(pair), has_draft_model=True)


def test_a_model_that_is_known_is_not_written_a_second_time(tmp_path):
    place = str(gguf(tmp_path / "t.gguf"))
    add("one", "--target", place)
    add("two", "--target", place)
    add("three", "--target", "t")
    assert {load_catalog().pair(name).target for name in ("one", "two", "three")} == {"t"}
    assert users_models().read_text().count("[models.") == 1


def test_two_models_of_one_name_stay_apart(tmp_path):
    (tmp_path / "other").mkdir()
    add("one", "--target", str(gguf(tmp_path / "t.gguf")))
    add("two", "--target", str(gguf(tmp_path / "other" / "t.gguf")))
    assert load_catalog().pair("two").target == "t-2"


def test_every_problem_is_a_line_and_nothing_is_written(tmp_path):
    (tmp_path / "pickles").mkdir()
    (tmp_path / "pickles" / "pytorch_model.bin").touch()
    lines = add("smol", "--target", str(tmp_path / "gone.gguf"), "--draft", str(tmp_path / "pickles"))
    assert lines[0] == "specchat: a pair is called 'smol' already"
    assert "gone.gguf does not exist" in lines[1]
    assert "read from .gguf and .safetensors files only" in lines[2]
    assert not users_models().exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["bad name", "--target", "scripted"], "'bad name' is no name"),
        (["mine", "--target", "scriptd"], "is no file, no repository and no model; did you mean 'scripted'?"),
    ],
)
def test_wrong_words_are_answered_with_the_nearest(arguments, words):
    (line,) = add(*arguments)
    assert words in line


def test_shapes_that_do_not_fit_are_refused_before_anything_is_written(tmp_path):
    (line,) = add("mine", "--target", str(folder(tmp_path / "m", model_type="rwkv")))
    assert "state cannot go back" in line
    assert not users_models().exists()


def test_what_stood_in_the_file_stays(tmp_path):
    text = "# my models\n[pairs.smol.defaults]\nwidth = 3 # three\n"
    (private_dir(config_dir()) / "models.toml").write_text(text)
    add("mine", "--target", str(gguf(tmp_path / "t.gguf")))
    assert users_models().read_text().startswith(text)
    assert run("forget", "mine", "--yes").exit_code == 0
    assert users_models().read_text().strip() == text.strip()


# ------------------------------------------------------------------------------------------------ the hub


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
    a_hub(folder(tmp_path / "m"), safetensors=2_000_000)
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
    assert "name one of them, such as o/r/x-q4.gguf" in line
    (line,) = add("mine", "--target", "o/r/x-q5.gguf")
    assert "did you mean 'x-q4.gguf'" in line
    assert add("mine", "--target", "o/r/x-q4.gguf") == []
    assert load_catalog().model("x-q4").sources == (HubSource("o/r", "x-q4.gguf"),)


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


# ------------------------------------------------------------------------------------------------- forgetting


def test_a_pair_of_ones_own_is_forgotten_with_models_nobody_else_needs(tmp_path):
    target, draft = str(gguf(tmp_path / "t.gguf")), str(gguf(tmp_path / "d.gguf"))
    add("one", "--target", target, "--draft", draft)
    add("two", "--target", target)
    assert run("forget", "one", "--yes").stdout == f"took one, d out of {users_models()}\n"
    assert set(load_catalog().models) >= {"t"}
    assert "d" not in load_catalog().models
    assert (tmp_path / "d.gguf").exists()


def test_what_came_with_specchat_cannot_be_forgotten():
    error = run("forget", "smol", "--yes").exception
    assert isinstance(error, UsageError)
    assert "came with specchat" in str(error)


def test_forgetting_asks_first(tmp_path, monkeypatch):
    add("mine", "--target", str(gguf(tmp_path / "t.gguf")))
    assert isinstance(run("forget", "mine").exception, UsageError)
    monkeypatch.setattr("specchat.cli.confirm.can_ask", lambda: True)
    assert "nothing changed" in run("forget", "mine", answer="n\n").stdout
    assert "mine" in load_catalog().pairs
    run("forget", "mine", answer="y\n")
    assert "mine" not in load_catalog().pairs


def a_damaged_header(path: Path) -> Path:
    whole = gguf(path).read_bytes()
    path.write_bytes(whole[:8] + b"\xff" * 8 + whole[16:])
    return path


def a_damaged_configuration(path: Path) -> Path:
    (folder(path) / "config.json").write_text("[" * 100_000)
    return path


def a_wrong_number(path: Path) -> Path:
    return folder(path, num_hidden_layers="many")


def a_damaged_shard(path: Path) -> Path:
    (folder(path) / "model.safetensors").write_bytes(b"\xff" * 100)
    return path


def a_damaged_tokenizer(path: Path) -> Path:
    (folder(path) / "tokenizer.json").write_text('{"model": {"vocab": [1, [2], {}]}}')
    return path


def a_pickle(path: Path) -> Path:
    path.mkdir()
    (path / "pytorch_model.bin").write_bytes(b"\x80")
    return path


def a_pipe(path: Path) -> Path:
    os.mkfifo(path)
    return path


def a_pipe_among_the_files(path: Path) -> Path:
    (folder(path) / "model.safetensors").unlink()
    os.mkfifo(path / "model.safetensors")
    return path


BROKEN = [a_damaged_header, a_damaged_configuration, a_wrong_number, a_damaged_shard, a_pickle, a_pipe]
BROKEN += [a_pipe_among_the_files]


@pytest.mark.parametrize("damage", [*BROKEN, a_damaged_tokenizer])
def test_broken_files_in_models_toml_are_listed_with_what_is_wrong(tmp_path, damage):
    place = damage(tmp_path / "broken.gguf")
    model = f'[models.broken]\nsources = [{{ path = "{place}" }}]\n'
    pair = '[pairs.mine]\ntarget = "broken"\ndraft = "broken"\n'
    (private_dir(config_dir()) / "models.toml").write_text(model + pair)
    judgement = judged(next(pair for pair in known_pairs() if pair.name == "mine"))
    listed = CliRunner().invoke(app, ["models", "list"])
    told = json.loads(CliRunner().invoke(app, ["models", "list", "--output", "json"]).output)
    (told,) = (model for model in told["models"] if model["name"] == "broken")
    assert listed.exit_code == 0, listed.output
    if damage is a_damaged_tokenizer:  # found out when two tables are compared, or when it is loaded
        assert (told["state"], judgement.trouble) == ("ready", "")
        return
    assert judgement.trouble == "files"
    assert str(place) in judgement.refusal
    assert told["state"] == "broken"
    assert str(place) in told["problem"]
    assert "✕ broken" in listed.output
    assert str(place) in listed.output.replace("\n", "")
