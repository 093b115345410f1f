"""The checksum of a model's weights: of one file, of several, and of files that are not here."""

from __future__ import annotations

import dataclasses
import hashlib
import os

import pytest

from specchat.config import PathSource, load_catalog
from specchat.errors import WeightsError
from specchat.models.hub import checksum


def test_the_checksum_of_one_file_is_its_own_and_is_not_computed_twice(tmp_path, monkeypatch):
    file = tmp_path / "a.gguf"
    file.write_bytes(b"GGUF")
    spec = dataclasses.replace(load_catalog().model("scripted"), name="own", sources=(PathSource(file),))
    assert checksum.known_sha256(spec) is None
    assert checksum.weights_sha256(spec) == hashlib.sha256(b"GGUF").hexdigest()
    assert checksum.known_sha256(spec) == hashlib.sha256(b"GGUF").hexdigest()
    monkeypatch.setattr(checksum.disk, "sha256_of", lambda *_: pytest.fail("hashed again"))
    assert checksum.weights_sha256(spec) == hashlib.sha256(b"GGUF").hexdigest()


def test_the_checksum_of_several_files_names_all_of_them(tmp_path):
    folder = tmp_path / "sharded"
    folder.mkdir()
    for name in ("b.safetensors", "a.safetensors", "config.json"):
        (folder / name).write_text(name)
    spec = dataclasses.replace(load_catalog().model("scripted"), name="own", sources=(PathSource(folder),))
    lines = "".join(f"{n} {hashlib.sha256(n.encode()).hexdigest()}\n" for n in ("a.safetensors", "b.safetensors"))
    assert checksum.weights_sha256(spec) == hashlib.sha256(lines.encode()).hexdigest()


def test_a_pipe_in_place_of_weights_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text("{}")
    spec = dataclasses.replace(load_catalog().model("scripted"), name="own", sources=(PathSource(tmp_path),))
    with pytest.raises(WeightsError, match=r"^the weights of own cannot be read: it is not a regular file$"):
        checksum.weights_sha256(spec)


def test_a_model_that_is_not_here_has_the_checksum_that_it_must_have():
    spec = load_catalog().model("smollm2-135m-instruct")
    assert checksum.known_sha256(spec) == spec.files[0].sha256
    with pytest.raises(WeightsError, match="specchat models pull"):
        checksum.weights_sha256(load_catalog().model("qwen3-0.6b"))
