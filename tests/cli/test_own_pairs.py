"""`specchat models add` and `forget`: what is looked at, what is refused, what is written."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from models_without_weights import folder, gguf
from typer.testing import CliRunner

from specchat.cli import app
from specchat.cli.pair_states import judged, known_pairs
from specchat.config import (
    PathSource,
    config_dir,
    load_catalog,
    private_dir,
    settings_of,
    users_models,
)
from specchat.decoding.combinations import check_settings
from specchat.errors import UsageError

ROOT = Path(__file__).parents[2]
OTHERS = ["<s>", "a", "c", "b", "d"]


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


def test_several_draft_models_are_written_listed_used_and_forgotten(tmp_path):
    places = {name: str(gguf(tmp_path / f"{name}.gguf")) for name in "tab"} | {
        "c": str(gguf(tmp_path / "c.gguf", OTHERS))
    }
    drafts = [word for name in "abc" for word in ("--draft", places[name])]
    assert add("mine", "--target", places["t"], *drafts) == []
    pair = load_catalog().pair("mine")
    assert (pair.target, pair.drafts) == ("t", ("a", "b", "c"))
    assert 'drafts = ["a", "b", "c"]' in users_models().read_text()
    of = {"merge.of": "suffix,draft_model,draft_model(model=b),cross_vocabulary(model=c)"}
    assert settings_of(pair).method_options == of
    check_settings(settings_of(pair), True, draft_models={"a": True, "b": True, "c": False})
    (info,) = (info for info in known_pairs() if info.name == "mine")
    assert info.draft == "a + b + c"
    assert judged(info).refusal == ""
    (listed,) = (one for one in json.loads(run("list", "--output", "json").stdout)["pairs"] if one["name"] == "mine")
    assert listed["drafts"] == ["a", "b", "c"]
    run("forget", "mine", "--yes")
    assert not {"t", "a", "b", "c"} & set(load_catalog().models)


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
        (["bad name", "--target", "scripted"], "'bad name' is not a valid name"),
        (["mine", "--target", "scriptd"], "is not a file, a repository or a known model; did you mean 'scripted'?"),
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


# ------------------------------------------------------------------------------------------------- forgetting


def test_a_pair_of_ones_own_is_forgotten_with_models_that_no_other_pair_needs(tmp_path):
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
    monkeypatch.setattr("specchat.cli.streams.can_ask", lambda: True)
    assert "nothing changed" in run("forget", "mine", answer="n\n").stdout
    assert "mine" in load_catalog().pairs
    run("forget", "mine", answer="y\n")
    assert "mine" not in load_catalog().pairs


@pytest.mark.parametrize(("name", "words"), [("smool", "did you mean 'smol'"), ("smol", "came with specchat")])
def test_what_cannot_be_forgotten_is_told_before_anything_is_asked(name, words):
    assert words in str(run("forget", name).exception)


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
