"""What lies in place of a file, such as a pipe or a device, is refused at once: nothing waits for it."""

from __future__ import annotations

import gzip
import os
import pty
import threading
import tracemalloc
from pathlib import Path

import pytest

from specchat.cli.bench_model import _accept_writable
from specchat.cli.datastore import texts_of_files
from specchat.cli.run_output import Record
from specchat.config.catalog import load_catalog
from specchat.config.datastore_files import datastore_files, datastores_dir, read_header
from specchat.config.directories import config_dir
from specchat.config.file_reading import open_regular, read_named
from specchat.config.toml_editing import change_file
from specchat.config.toml_file import parse, parse_if_there
from specchat.config.trained_drafters import read_drafter
from specchat.config.user_config import system_message
from specchat.engine.client.replay import Recording
from specchat.errors import ConfigError, StoreError, UsageError, WeightsError
from specchat.models.weights.config_file import read_object
from specchat.models.weights.gguf_header import read_header as read_gguf_header
from specchat.store.chat_json import read_file


@pytest.fixture(params=["pipe", "device", "folder", "loop"])
def odd(request, tmp_path):
    """Something that is not a regular file, and what is said of it."""
    path = tmp_path / "odd"
    match request.param:
        case "pipe":
            os.mkfifo(path)
        case "device":
            path.symlink_to("/dev/zero")
        case "folder":
            path.mkdir()
        case "loop":
            path.symlink_to(path)
    return path, "Too many levels" if request.param == "loop" else "it is not a regular file"


def test_what_is_no_ordinary_file_is_not_opened(odd):
    path, said = odd
    with pytest.raises(OSError, match=said):
        open_regular(path)


@pytest.mark.parametrize(
    ("read", "error"), [(parse, ConfigError), (read_header, StoreError), (read_object, WeightsError)]
)
def test_readers_refuse_what_is_no_ordinary_file_in_one_line(odd, read, error):
    path, said = odd
    with pytest.raises(error, match=rf"^{path} cannot be read: {said}[^\n]*$"):
        read(path)


def test_a_saved_system_message_that_is_no_ordinary_file_is_refused(odd):
    path, said = odd
    folder = config_dir() / "system"
    folder.mkdir(parents=True)
    file = folder / "pirate.txt"
    file.symlink_to(path)
    with pytest.raises(UsageError, match=rf"^{file} cannot be read: {said}"):
        system_message("pirate")


@pytest.mark.parametrize("name", ["models.toml", "mirrors.toml", "config.toml"])
def test_a_file_of_the_users_own_that_is_a_link_to_itself_is_not_passed_over(name, tmp_path, monkeypatch):
    monkeypatch.setenv("SPECCHAT_HOME", str(tmp_path))
    file = config_dir() / name
    file.parent.mkdir(parents=True)
    file.symlink_to(file)
    with pytest.raises(ConfigError, match=f"{name} cannot be read: Too many levels of symbolic links"):
        parse_if_there(file)
    with pytest.raises(ConfigError, match=f"{name} cannot be read"):
        change_file(file, lambda document: None, lambda place, tables: None)


@pytest.mark.parametrize("name", ["models.toml", "mirrors.toml"])
def test_a_file_of_the_users_own_that_is_a_folder_or_a_pipe_is_not_passed_over(name, tmp_path, monkeypatch):
    monkeypatch.setenv("SPECCHAT_HOME", str(tmp_path))
    file = config_dir() / name
    file.mkdir(parents=True)
    with pytest.raises(ConfigError, match=f"{name} cannot be read: it is not a regular file"):
        load_catalog()
    file.rmdir()
    os.mkfifo(file)
    with pytest.raises(ConfigError, match=f"{name} cannot be read: it is not a regular file"):
        load_catalog()
    file.unlink()
    assert load_catalog().pairs


def test_a_drafter_described_by_a_pipe_is_refused(tmp_path):
    os.mkfifo(tmp_path / "drafter.toml")
    with pytest.raises(ConfigError, match="it is not a regular file"):
        read_drafter(tmp_path, ("hydra",))


def test_odd_datastores_are_listed_with_what_is_wrong(tmp_path, monkeypatch):
    monkeypatch.setenv("SPECCHAT_HOME", str(tmp_path))
    datastores_dir().mkdir(parents=True)
    os.mkfifo(datastores_dir() / "pipe.datastore")
    (datastores_dir() / "loop.datastore").symlink_to(datastores_dir() / "loop.datastore")
    (datastores_dir() / "deep.datastore").write_bytes(b"specchat datastore 1\n" + b"[" * 4096)
    problems = {one.name: one.problem for one in datastore_files()}
    assert "not a regular file" in problems["pipe"]
    assert "Too many levels" in problems["loop"]
    assert "has an invalid header" in problems["deep"]


def test_a_named_file_is_read_only_as_far_as_it_may_go(tmp_path):
    file = tmp_path / "long"
    file.touch()
    os.truncate(file, 1 << 40)
    with pytest.raises(UsageError, match=rf"^{file} cannot be read: it is larger than 1 MiB$"):
        read_named(file, most=1 << 20)


def read_texts(file):
    return "".join(text for _, text in texts_of_files([file]))


NAMED = {"prompts": read_named, "a chat": read_file, "a recording": Recording.read, "texts": read_texts}
"""What reads files that a command names."""


@pytest.mark.parametrize("what", NAMED)
def test_readers_of_files_that_are_named_refuse_what_would_keep_them_waiting(odd, what):
    path, said = odd
    if what == "texts" and path.is_dir():
        pytest.skip("a folder's files are read")
    with pytest.raises(UsageError, match=rf"^{path}.*: {said}[^\n]*$|^{path}.*{said}[^\n]*$"):
        NAMED[what](path)


def test_a_terminal_is_no_file_that_is_named():
    ours, theirs = pty.openpty()
    try:
        with pytest.raises(UsageError, match="it is not a regular file"):
            read_named(Path(os.ttyname(theirs)))
    finally:
        os.close(ours)
        os.close(theirs)


@pytest.mark.parametrize("where", ["/dev/fd/{}", "/proc/self/fd/{}"])
def test_a_pipe_that_a_shell_puts_in_a_files_place_is_read_to_its_end(where):
    end, other = os.pipe()
    try:
        writer = threading.Timer(0.1, lambda: (os.write(other, b"some text"), os.close(other)))
        writer.start()
        assert read_named(Path(where.format(end))) == "some text"
    finally:
        writer.join()
        os.close(end)


def test_a_pipe_is_written_to_while_somebody_reads_it_and_is_not_waited_for(tmp_path):
    os.mkfifo(pipe := tmp_path / "pipe")
    with pytest.raises(UsageError, match=rf"^--record {pipe} cannot be written: nobody reads this pipe$"):
        Record(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        record = Record(pipe)
        record.write(b"a line")
        record.close()
        assert (record.problem, os.read(reader, 100)) == ("", b"a line")
    finally:
        os.close(reader)


def test_a_report_is_not_saved_to_a_pipe(tmp_path):
    os.mkfifo(pipe := tmp_path / "pipe")
    with pytest.raises(UsageError, match=rf"^--save {pipe} cannot be written: it is a pipe"):
        _accept_writable(pipe)


def test_weights_that_are_a_pipe_keep_nobody_waiting(tmp_path):
    os.mkfifo(tmp_path / "model.gguf")
    with pytest.raises(WeightsError, match=r"^[^\n]*it is not a regular file[^\n]*$"):
        read_gguf_header(tmp_path / "model.gguf")


def test_a_packed_file_is_unpacked_only_as_far_as_it_may_go(tmp_path):
    file = tmp_path / "bomb.gz"
    file.write_bytes(gzip.compress(bytes(1 << 24)))
    tracemalloc.start()
    try:
        with pytest.raises(UsageError, match=rf"^{file} cannot be read: it is larger than 1 MiB$"):
            read_named(file, most=1 << 20)
        assert tracemalloc.get_traced_memory()[1] < 1 << 23
    finally:
        tracemalloc.stop()
