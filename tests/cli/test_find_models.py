"""`specchat models find`: what is found is listed, and added without a copy."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from models_without_weights import gguf
from typer.testing import CliRunner

from specchat.cli import app
from specchat.config import PathSource, load_catalog, settings_of
from specchat.models.hub import model_state

sys.path.append(str(Path(__file__).parents[1] / "models" / "hub"))

from other_programs import ollama


def find(*arguments: str):
    return CliRunner().invoke(app, ["models", "find", *arguments])


@pytest.fixture
def stored(tmp_path, monkeypatch):
    """A home in which Ollama keeps one model; its blob."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for variable in ("OLLAMA_MODELS", "HF_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME", "LLAMA_CACHE"):
        monkeypatch.delenv(variable, raising=False)
    store = tmp_path / ".ollama" / "models"
    return ollama(store, "registry.ollama.ai/library/tiny/1b", gguf(tmp_path / "m.gguf"), temperature=0.6)


def test_what_was_found_is_listed_and_added_by_number_where_it_lies(stored, monkeypatch):
    before = sorted(stored.parent.iterdir())
    listed = find()
    assert listed.exit_code == 0
    row = next(line for line in listed.stdout.splitlines() if "tiny-1b" in line)
    assert "fits in memory" in row
    monkeypatch.setattr("specchat.cli.find_models.table_width", lambda: 50)
    assert "fits in memory" in find().stdout, "in a narrow window it is the last column that is divided"
    added = find("--add", row.split()[0])
    assert (added.exit_code, added.stdout.split(" (")[0]) == (0, "added tiny-1b")
    catalog = load_catalog()
    pair = catalog.pair("tiny-1b")
    assert catalog.model(pair.target).sources == (PathSource(stored),)
    assert (pair.target, settings_of(pair).temperature) == ("tiny-1b", 0.6)
    assert model_state.locate(catalog.model(pair.target)) == stored
    assert sorted(stored.parent.iterdir()) == before


def test_what_was_added_is_marked_and_not_added_twice(stored):
    find("--add", "tiny-1b")
    (pair,) = [pair for pair in json.loads(find("--output", "json").stdout)["pairs"] if pair["name"] == "tiny-1b"]
    assert pair["added"] == "tiny-1b"
    assert "was added before" in find("--add", "tiny-1b").stdout
    assert "tiny-1b-2" not in load_catalog().pairs


@pytest.mark.parametrize("wanted", ["0", "99", "tiny-1c", "-1", "\x1b[31m"])
def test_a_number_or_name_that_is_not_listed_is_refused_with_the_nearest(stored, wanted):
    result = find(f"--add={wanted}")
    assert result.exit_code != 0
    assert "is not one of the pairs found" in str(result.exception)
    assert "\x1b" not in str(result.exception)
    if wanted == "tiny-1c":
        assert "did you mean 'tiny-1b'" in str(result.exception)


def test_names_in_the_store_cannot_steer_the_terminal(stored, tmp_path):
    ollama(
        tmp_path / ".ollama" / "models", "registry.ollama.ai/library/a\x1b[31mb/1b", gguf(tmp_path / "n.gguf", ["<s>"])
    )
    assert "\x1b" not in find().stdout
    assert "\x1b" not in find("--output", "json").stdout
