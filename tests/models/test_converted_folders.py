"""What a GGUF file was converted to is used again as long as it is whole, and goes when nobody needs it."""

import errno
import json
import os
import shutil
import stat

import pytest
import tokenizers
from tiny_models import TEMPLATE, tiny_gguf

from specchat.config import cache_dir
from specchat.config.kept_files import locked
from specchat.errors import WeightsError
from specchat.models.model_loading import load_tokenizer
from specchat.models.weights import transformers_cache as module
from specchat.models.weights.transformers_cache import converted_folder, is_converted

DAMAGE = {
    "tokenizer.json emptied": lambda folder: (folder / "tokenizer.json").write_bytes(b""),
    "config.json emptied": lambda folder: (folder / "config.json").write_bytes(b""),
    "chat_template.jinja emptied": lambda folder: (folder / "chat_template.jinja").write_bytes(b""),
    "zeros of the same size": lambda folder: (folder / "tokenizer.json").write_bytes(
        bytes((folder / "tokenizer.json").stat().st_size)
    ),
    "a file removed": lambda folder: (folder / "tokenizer_config.json").unlink(),
    "a file added": lambda folder: (folder / "added_tokens.json").write_text("{}"),
    "a folder for a file": lambda folder: ((folder / "config.json").unlink(), (folder / "config.json").mkdir()),
    "its contents unreadable": lambda folder: (folder / "specchat_contents.json").write_bytes(b"\xff"),
    "its contents removed": lambda folder: (folder / "specchat_contents.json").unlink(),
    "its contents others": lambda folder: (folder / "specchat_contents.json").write_text('{"files": []}'),
    "no folder": lambda folder: (shutil.rmtree(folder), folder.write_text("")),
}


@pytest.fixture
def file(tmp_path):
    return tiny_gguf(tmp_path / "m.gguf")


def entries():
    return {entry.name for entry in (cache_dir() / "converted").iterdir()}


def test_a_whole_folder_is_used_again(file):
    assert not is_converted(file)
    folder = converted_folder(file)
    before = {entry: entry.stat().st_mtime_ns for entry in folder.iterdir()}
    assert is_converted(file)
    assert converted_folder(file) == folder
    assert {entry: entry.stat().st_mtime_ns for entry in folder.iterdir()} == before


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_folder_is_made_anew(damage, file):
    folder = converted_folder(file)
    before = {entry.name: entry.read_bytes() for entry in folder.iterdir()}
    DAMAGE[damage](folder)
    assert not is_converted(file)
    assert converted_folder(file) == folder
    assert {entry.name: entry.read_bytes() for entry in folder.iterdir()} == before
    assert entries() == {folder.name}
    tokenizer, _ = load_tokenizer("m", file)
    assert tokenizer.decode(tokenizer.encode("hello")) == "hello"
    assert tokenizer.chat_template == TEMPLATE


def test_what_a_killed_program_left_goes_and_what_a_running_one_writes_stays(file):
    converted = cache_dir() / "converted"
    for name in (f"a-1.{os.getpid()}.new", ".unfinished-dead", ".unfinished-running"):
        (converted / name).mkdir(parents=True)
        (converted / name / "tokenizer.json").write_text("{")
    (converted / ".unfinished-dead.lock").touch()
    with locked(converted / ".unfinished-running.lock", 0):
        folder = converted_folder(file)
    assert entries() == {folder.name, ".unfinished-running", ".unfinished-running.lock"}


def test_folders_of_files_that_are_gone_go_when_another_is_made(file, tmp_path):
    gone, there = tiny_gguf(tmp_path / "gone.gguf"), tiny_gguf(tmp_path / "there.gguf")
    folders = [converted_folder(one) for one in (gone, there)]
    gone.unlink()
    converted_folder(there)
    assert entries() == {folder.name for folder in folders}, "nothing was made"
    folder = converted_folder(file)
    assert entries() == {folders[1].name, folder.name}


def test_the_folder_of_a_file_that_changed_goes(file):
    before = converted_folder(file)
    os.utime(file, ns=(1, 1))
    after = converted_folder(file)
    assert after != before
    assert entries() == {after.name}


def test_another_program_that_is_quicker_is_believed(file):
    folder = converted_folder(file)
    before = folder.stat().st_ino
    module.make_folder(folder, file, lambda unfinished: (unfinished / "x").write_text("x"))
    assert folder.stat().st_ino == before
    assert entries() == {folder.name}


def fails(number, said=None):
    def write(*about, **how):
        raise OSError(number, os.strerror(number)) if said is None else Exception(said)

    return write


@pytest.mark.parametrize("said", [None, "No space left on device (os error 28)"])
def test_a_full_disk_is_told_with_the_folder_that_has_no_room(file, said, monkeypatch):
    from transformers import PreTrainedTokenizerFast

    monkeypatch.setattr(PreTrainedTokenizerFast, "save_pretrained", fails(errno.ENOSPC, said))
    converted = cache_dir() / "converted"
    with pytest.raises(WeightsError) as raised:
        converted_folder(file)
    assert str(raised.value) == (
        f"not enough space in {converted}, where the tokenizer of m.gguf has to be written: the disk is full"
    )
    assert entries() == set()


def test_a_cache_that_cannot_be_written_is_told_by_its_name(file):
    cache_dir().mkdir(parents=True, exist_ok=True)
    (cache_dir() / "converted").write_text("")
    with pytest.raises(WeightsError, match=f"^cannot write to {cache_dir() / 'converted'}, where the tokenizer of m"):
        converted_folder(file)


def test_the_contents_name_the_file_it_was_made_of(file):
    said = json.loads((converted_folder(file) / "specchat_contents.json").read_text())
    assert said["source"] == str(file)
    assert {"tokenizer.json", "config.json"} <= set(said["files"])
    assert tokenizers.Tokenizer.from_file(str(converted_folder(file) / "tokenizer.json"))


def test_what_was_converted_is_readable_by_its_owner_alone(file):
    folder = converted_folder(file)
    modes = {stat.S_IMODE(entry.stat().st_mode) for entry in folder.iterdir()}
    assert (modes, stat.S_IMODE(folder.stat().st_mode)) == ({0o600}, 0o700)
