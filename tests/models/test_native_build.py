"""The compiled kernels are loaded only if no other user can have written them."""

import ctypes
import os
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from native_kit import needs_native

from specchat.compiled import build as compiling
from specchat.compiled.build import NativeUnavailable, NotOwnFile, open_own
from specchat.config import cache_dir
from specchat.models.cpu_kernels import build

pytestmark = needs_native


@pytest.fixture(autouse=True)
def quick(monkeypatch, tmp_path):
    """Kernels of one line, compiled in no time: what is tried here is where they lie."""
    sources = tmp_path / "sources"
    sources.mkdir()
    (sources / "kernels.c").write_text("int packs(int kind) { return kind == 0; }\n")
    monkeypatch.setattr(build, "_FOLDER", sources)


def built():
    """The path of kernels that were just built."""
    return Path(build.load().where)


def inode(file):
    return file.stat().st_ino


def test_kernels_are_compiled_once_and_for_their_owner_alone():
    umask = os.umask(0)
    try:
        file = built()
    finally:
        os.umask(umask)
    assert file.stat().st_mode & 0o777 == 0o700
    assert file.parent.stat().st_mode & 0o777 == 0o700
    first = inode(file)
    assert built() == file
    assert inode(file) == first


def test_a_change_of_a_header_in_another_folder_compiles_anew(tmp_path):
    folder, headers = tmp_path / "sources", tmp_path / "headers"
    headers.mkdir()
    (folder / "kernels.c").write_text('#include "kinds.h"\nint packs(int kind) { return kind == KIND; }\n')
    sources = replace(build.kernel_sources(), headers=headers)
    for kind in (3, 4):
        (headers / "kinds.h").write_text(f"enum {{ KIND = {kind} }};\n")
        assert [kind for kind in range(9) if compiling.load(sources).library.packs(kind)] == [kind]


def test_what_a_compilation_left_that_was_ended_is_removed_by_the_next_one():
    left = cache_dir() / "native" / "compiling-left"
    left.mkdir(parents=True, mode=0o700)
    (left / "kernels.so").write_bytes(b"half of it")
    assert built().exists()
    assert not left.exists()


@pytest.mark.parametrize("mode", [0o720, 0o702, 0o777])
def test_a_file_that_others_can_write_is_compiled_anew(mode):
    file = built()
    planted = file.with_name("planted")
    planted.write_bytes(b"not what was compiled")
    os.replace(planted, file)
    file.chmod(mode)
    assert build.load().library.packs(0)
    assert file.stat().st_mode & 0o777 == 0o700
    assert file.read_bytes()[:4] == b"\x7fELF"


def test_a_file_in_a_folder_that_others_can_write_is_compiled_anew():
    file = built()
    before = inode(file)
    file.parent.chmod(0o777)
    assert built() == file
    assert inode(file) != before
    assert file.parent.stat().st_mode & 0o777 == 0o700


def test_a_link_is_not_followed(tmp_path):
    file = built()
    elsewhere = tmp_path / "elsewhere.so"
    os.replace(file, elsewhere)
    file.symlink_to(elsewhere)
    assert built() == file
    assert not file.is_symlink()


def counting(monkeypatch, pause_s=0.0):
    """A list that gets an entry for each time that something is compiled."""
    runs, compile_ = [], compiling._compile

    def counted(sources, file):
        runs.append(file)
        time.sleep(pause_s)
        compile_(sources, file)

    monkeypatch.setattr(compiling, "_compile", counted)
    return runs


@pytest.mark.parametrize("linked", ["native", ""], ids=["the folder of kernels", "the whole cache"])
def test_behind_a_linked_folder_of_ones_own_the_kernels_are_compiled_once(monkeypatch, tmp_path, linked):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    link = cache_dir() / linked
    link.parent.mkdir(parents=True, mode=0o700, exist_ok=True)
    link.symlink_to(elsewhere)
    runs = counting(monkeypatch)
    assert built() == built()
    assert len(runs) == 1
    assert list(elsewhere.rglob("*.so"))


def test_a_linked_folder_that_others_can_write_is_made_private_and_its_file_compiled_anew(tmp_path):
    elsewhere = tmp_path / "elsewhere"
    file = built()
    shutil.move(file.parent, elsewhere)
    file.parent.symlink_to(elsewhere)
    before = inode(file)
    elsewhere.chmod(0o777)
    assert built() == file
    assert inode(file) != before
    assert elsewhere.stat().st_mode & 0o777 == 0o700


def test_two_that_start_at_once_compile_once(monkeypatch):
    runs = counting(monkeypatch, pause_s=0.2)
    with ThreadPoolExecutor() as pool:
        first, second = pool.submit(built), pool.submit(built)
        assert first.result() == second.result()
    assert len(runs) == 1


def test_a_pipe_in_its_place_blocks_no_start():
    file = built()
    file.unlink()
    os.mkfifo(file, 0o600)
    assert built().is_file()


def test_with_a_cache_that_others_can_write_the_kernels_are_compiled_for_this_process_only(monkeypatch):
    file = built()
    file.write_bytes(b"planted")
    root = file.parents[1]
    root.chmod(0o777)
    runs = counting(monkeypatch)
    kernels = build.load()
    assert kernels.library.packs(0)
    assert len(runs) == 1, "and not in the cache first"
    assert "for this process only" in kernels.where
    assert str(root) in kernels.where
    assert root.stat().st_mode & 0o777 == 0o777, "a folder that may be shared on purpose stays as it is"


def test_files_of_another_user_are_not_loaded(monkeypatch):
    monkeypatch.setattr(compiling.os, "geteuid", lambda: 4242)
    with pytest.raises(NativeUnavailable, match="belongs to another user"):
        build.load()


def test_what_is_loaded_is_what_was_looked_at(monkeypatch):
    file = built()
    load = ctypes.CDLL

    def exchanged(name):
        other = file.with_name("other")
        other.write_bytes(b"exchanged after the look")
        os.replace(other, file)
        return load(name)

    monkeypatch.setattr(compiling.ctypes, "CDLL", exchanged)
    assert build.load().library.packs(0)
    assert file.read_bytes() == b"exchanged after the look"


def test_two_builds_in_one_process_are_two_libraries(monkeypatch):
    first = build.load().library
    monkeypatch.setattr(build, "_FLAGS", (*build._FLAGS, "-DOTHER"))
    second = build.load().library
    assert ctypes.addressof(ctypes.c_char.in_dll(first, "packs")) != ctypes.addressof(
        ctypes.c_char.in_dll(second, "packs")
    )


def test_a_file_is_opened_only_below_folders_of_ones_own(tmp_path):
    inner = tmp_path / "inner"
    inner.mkdir(mode=0o700)
    file = inner / "file"
    file.write_text("mine")
    file.chmod(0o600)
    with os.fdopen(open_own(file, tmp_path)) as opened:
        assert opened.read() == "mine"
    inner.chmod(0o770)
    with pytest.raises(NotOwnFile, match="inner can be written by others"):
        open_own(file, tmp_path)
    inner.chmod(0o700)
    with pytest.raises(NotOwnFile, match="is not a regular file"):
        open_own(inner, tmp_path)
