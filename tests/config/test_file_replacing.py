"""Files that are put in the place of others in one step, and what killed programs leave of them."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from specchat.config.kept_files import creating, remove_unfinished, replacing, unfinished


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file in a folder that is not there yet."""
    return tmp_path / "folder" / "kept.bin"


def names_beside(file: Path) -> list[str]:
    return sorted(one.name for one in file.parent.iterdir())


def mode_of(file: Path) -> int:
    return stat.S_IMODE(file.stat().st_mode)


def test_the_new_file_is_private_and_so_is_a_folder_that_had_to_be_made(file):
    with replacing(file) as draft:
        assert mode_of(draft) == 0o600
        draft.write_bytes(b"new")
        assert not file.exists()
    assert (file.read_bytes(), mode_of(file), mode_of(file.parent)) == (b"new", 0o600, 0o700)
    with replacing(file, mode=0o644) as draft:
        draft.write_bytes(b"for all")
    assert mode_of(file) == 0o644
    assert names_beside(file) == ["kept.bin"]


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize(("module", "name"), [(Path, "write_bytes"), (os, "fsync"), (os, "replace")])
def test_what_fails_leaves_the_old_file_and_nothing_else(file, monkeypatch, alone, module, name):
    file.parent.mkdir()
    file.write_bytes(b"old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, name, full)
    with pytest.raises(OSError, match="No space"), replacing(file, alone=alone) as draft:
        draft.write_bytes(b"half")
    assert (file.read_bytes(), names_beside(file)) == (b"old", ["kept.bin"])


def test_two_programs_that_write_one_file_do_not_write_into_each_others(file):
    with replacing(file) as one, replacing(file) as other:
        one.write_bytes(b"one")
        other.write_bytes(b"other")
    assert file.read_bytes() == b"one"


def test_what_a_killed_program_left_is_written_over_where_nothing_else_writes(file):
    file.parent.mkdir()
    with replacing(file, alone=True) as draft:
        left = draft
    left.write_bytes(b"left by one that was killed")
    with replacing(file, alone=True) as draft:
        draft.write_bytes(b"new")
    assert (file.read_bytes(), names_beside(file)) == (b"new", ["kept.bin"])


@pytest.mark.parametrize("durable", [True, False])
def test_only_what_cannot_be_made_again_waits_for_the_disk(file, monkeypatch, durable):
    waited = []
    monkeypatch.setattr(os, "fsync", waited.append)
    with replacing(file, durable=durable) as draft:
        draft.write_bytes(b"new")
    assert len(waited) == durable


def test_a_file_is_created_whole_with_the_users_own_mode(file):
    file.parent.mkdir()
    ordinary = file.with_name("ordinary")
    ordinary.touch()
    with creating(file) as draft:
        draft.write_bytes(b"new")
        assert not file.exists()
    assert (file.read_bytes(), mode_of(file)) == (b"new", mode_of(ordinary))
    assert names_beside(file) == ["kept.bin", "ordinary"]


@pytest.mark.parametrize(("module", "name"), [(Path, "write_bytes"), (os, "fsync"), (Path, "touch"), (os, "replace")])
def test_a_file_that_cannot_be_created_leaves_nothing(file, monkeypatch, module, name):
    file.parent.mkdir()

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, name, full)
    with pytest.raises(OSError, match="No space"), creating(file) as draft:
        draft.write_bytes(b"half")
    assert names_beside(file) == []


def test_a_file_that_is_there_is_not_created_again_nor_is_what_came_meanwhile(file):
    file.parent.mkdir()
    with pytest.raises(FileExistsError), creating(file):
        file.write_bytes(b"of another program")
    assert (file.read_bytes(), names_beside(file)) == (b"of another program", ["kept.bin"])
    file.unlink()
    file.symlink_to("nowhere")
    with pytest.raises(FileExistsError), creating(file):
        pass
    assert file.is_symlink()


def test_a_file_is_created_in_no_folder_that_is_not_there(file):
    with pytest.raises(FileNotFoundError), creating(file):
        pass
    assert not file.parent.exists()


_WRITES = """
import sys
from pathlib import Path
from specchat.config.kept_files import unfinished
with unfinished(Path(sys.argv[1])) as made:
    (made / "weights").write_bytes(b"half")
    print("written", flush=True)
    sys.stdin.read()
"""


def test_unfinished_folders_of_killed_programs_go_and_those_of_living_ones_stay(tmp_path):
    place = tmp_path / "place"
    writer = subprocess.Popen([sys.executable, "-c", _WRITES, place / "made"], stdin=-1, stdout=-1, text=True)
    try:
        assert writer.stdout.readline() == "written\n"
        remove_unfinished(place)
        assert [file.read_bytes() for file in place.glob(".unfinished-*/made/weights")] == [b"half"]
    finally:
        writer.send_signal(signal.SIGKILL)
        writer.communicate()
    assert len(list(place.iterdir())) == 2
    (place / "other").mkdir()
    remove_unfinished(place)
    assert [one.name for one in place.iterdir()] == ["other"]
    with unfinished(place / "made") as made:
        remove_unfinished(place)
        assert made.is_dir()
    assert [one.name for one in place.iterdir()] == ["other"]


def test_a_folder_that_was_there_keeps_its_mode_and_a_new_one_is_private(tmp_path):
    shared = tmp_path / "shared"
    shared.mkdir(mode=0o755)
    with unfinished(shared / "one"), unfinished(tmp_path / "new" / "one"):
        assert shared.stat().st_mode & 0o777 == 0o755
        assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700
