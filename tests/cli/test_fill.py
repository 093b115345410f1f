"""`specchat fill`: text, JSON, figures; a model of a folder; what cannot be used is refused in one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from specchat.cli import app
from specchat.errors import SpecchatError
from specchat.training.infill import new_network
from tests.printed import printed
from tests.tiny_models import CONFIG, TOKENS, write_tokenizer

pytestmark = pytest.mark.usefixtures("preloaded")

ESCAPE = TOKENS.index("\u011b")  # byte-level BPE's character for the byte 0x1b


def write_model(folder: Path, prefers: int | None = None) -> Path:
    """A small random XLNet whose likeliest token is this one everywhere, if there is one."""
    folder.mkdir()
    network = new_network(len(TOKENS), seed=0, width=16, layers=1)
    if prefers is not None:
        with torch.no_grad():
            network.lm_loss.bias[prefers] = 50.0
    network.save_pretrained(folder)
    write_tokenizer(folder)
    return folder


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "model")


def fill(*words: str, **how: Any) -> Any:
    return CliRunner().invoke(app, ["fill", *words], **how)


def as_json(*words: str, **how: Any) -> Any:
    found = fill(*words, "--output", "json", **how)
    assert found.exit_code == 0, found.exception
    return json.loads(found.stdout)


def error_of(*words: str) -> SpecchatError:
    error = fill(*words).exception
    assert isinstance(error, SpecchatError), error
    assert "\n" not in str(error)
    return error


def test_the_object_has_text_parts_and_figures(model):
    found = as_json("The cat ____ on the __5__.", "--model", str(model), "--seed", "3", "-k", "4")
    known = [part["text"] for part in found["parts"] if not part["filled"]]
    assert known == ["The cat", " on the", "."]
    assert found["text"] == "".join(part["text"] for part in found["parts"])
    assert len(found["tokens"]) == found["stats"]["tokens"] == found["stats"]["passes_without_speculation"] == 9
    assert found["stats"]["passes"] <= 9
    assert (found["seed"], found["drafter"], found["lossless"]) == (3, "self", True)
    assert found == as_json("The cat ____ on the __5__.", "--model", str(model), "--seed", "3", "-k", "4") | {
        "stats": found["stats"]
    }


def test_plain_takes_a_pass_for_each_token_and_gives_the_same_greedy_text(model):
    how = ("a ________ b __6__", "--model", str(model), "--temperature", "0")
    plain, guessed, pairs = as_json(*how, "--plain"), as_json(*how), as_json(*how, "--drafter", "ngram")
    assert (plain["drafter"], plain["stats"]["passes"], plain["stats"]["drafted"]) == ("none", 14, 0)
    assert plain["text"] == guessed["text"] == pairs["text"]
    assert guessed["stats"]["passes"] <= 14 >= pairs["stats"]["passes"]


def test_in_a_pipe_the_text_is_plain_and_standard_input_is_read(model):
    piped = fill("--model", str(model), "--seed", "1", input="The cat ____ on\nthe mat.\n")
    given = as_json("The cat ____ on\nthe mat.", "--model", str(model), "--seed", "1")
    assert "\x1b" not in piped.stdout
    assert piped.stdout.startswith("The cat")
    assert piped.stdout.endswith(" on\nthe mat.\n")
    assert [part["filled"] for part in given["parts"]] == [False, True, False]


def test_in_a_terminal_what_was_filled_in_is_bold_escapes_are_shown_and_figures_stand_below(tmp_path):
    said = printed(
        "fill", "The cat __2__.", "--model", str(write_model(tmp_path / "model", ESCAPE)), "--temperature", "0"
    )
    assert "The cat\x1b[1m␛␛\x1b[0m." in said
    assert "2 tok · 2 passes, 2 without speculation, 1 of 1 guesses accepted" in said


def edited(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        change(config)
        (folder / "config.json").write_text(json.dumps(config))

    return edit


def without(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def weights(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        change(tensors)
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})

    return edit


DAMAGED = {
    "no config": (without("config.json"), "config.json cannot be read"),
    "no tokenizer": (without("tokenizer.json"), "holds no tokenizer: neither tokenizer.json nor spiece.model is there"),
    "no weights": (without("model.safetensors"), ""),
    "another network": (lambda folder: (folder / "config.json").write_text(json.dumps(CONFIG)), "kind llama"),
    "one direction": (edited(lambda config: config.update(attn_type="uni")), "attn_type = uni"),
    "layers": (edited(lambda config: config.update(n_layer=-1)), "n_layer = -1 is not a whole number"),
    "huge": (edited(lambda config: config.update(d_inner=10**9)), "describes a network of"),
    "text for a number": (edited(lambda config: config.update(d_inner="\x1b[31m")), ""),
    "tokens": (edited(lambda config: config.update(vocab_size=9)), "tokens, the network 9"),
    "not numbers": (weights(lambda tensors: tensors["lm_loss.bias"].fill_(torch.nan)), "/model gives logits that"),
    "a tensor is missing": (weights(lambda tensors: tensors.pop("transformer.mask_emb")), "mask_emb"),
    "bytes": (lambda folder: (folder / "model.safetensors").write_bytes(b"x" * 99), "safetensors"),
    "a list": (lambda folder: (folder / "config.json").write_text("[]"), "not a JSON object"),
}


@pytest.mark.parametrize(("damage", "says"), DAMAGED.values(), ids=DAMAGED)
def test_a_folder_that_cannot_be_used_is_refused_in_one_line(model, damage, says):
    damage(model)
    error = error_of("The cat ____.", "--model", str(model))
    assert says in str(error)
    assert len(str(error)) < 1000


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["no blank"], "the text has no blank"),
        (["a __0__"], "the blank __0__"),
        (["a ____"], "--train FILE makes one"),
        (["a ____", "--model", "/nonexistent/x"], "--model /nonexistent/x is not a folder"),
        (["a ____", "--temperature", "nan"], "temperature = nan is outside its range"),
        (["a ____", "--train", "x"], "--train makes a model and fills in no text"),
        (["a ____", "--steps", "9"], "--steps is for a training: --train FILE names its text"),
        (["--train", "/nonexistent/x"], "--train '/nonexistent/x' cannot be read"),
        ([], "the text has no blank"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_exit_code_2(words, says):
    error = error_of(*words)
    assert says in str(error)
    assert error.exit_code == 2


def test_a_text_makes_the_model_that_is_used_where_none_is_named(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text(" ".join(f"{number} times {number} is {number * number}." for number in range(600)))
    made = fill("--train", str(text), "--steps", "1", "--seed", "1")
    assert made.exit_code == 0, made.exception
    assert "nats a token on the end of the text" in made.stdout
    assert as_json("2 times 2 is ___")["text"].startswith("2 times 2 is")
    assert "is there already" in str(error_of("--train", str(text)))
    found = as_json("--train", str(text), "--steps", "1", "--seed", "1", "--model", str(tmp_path / "other"))
    assert (found["model"], found["steps"], found["seed"]) == (str(tmp_path / "other"), 1, 1)
    assert f"{found['unseen_nats']:.2f} nats a token" in made.stdout
