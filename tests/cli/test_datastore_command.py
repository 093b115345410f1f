"""`specchat datastore`: built of files, folders and chats, listed with its size, removed, and drafted from."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from specchat.cli import app, datastore
from specchat.config.datastore_files import datastore_files, datastores_dir, read_header
from specchat.errors import SpecchatError, StoreError, UsageError
from specchat.indexes.datastore import Datastore
from specchat.models.backends.scripted import PASSAGES, ScriptedVocabulary
from specchat.store.chats import Chats
from specchat.store.database import default_path, open_to_write
from specchat.store.records import ChatRecord, StoredMessage

pytestmark = pytest.mark.usefixtures("preloaded")


def run(*arguments: str):
    return CliRunner().invoke(app, ["datastore", *arguments])


def build(*arguments: str):
    found = run("build", *arguments, "--pair", "scripted")
    assert found.exit_code == 0, found.exception
    return found


def error_of(*arguments: str) -> SpecchatError:
    error = run(*arguments).exception
    assert isinstance(error, SpecchatError), error
    assert "\n" not in str(error)
    return error


def texts_in(name: str) -> list[str]:
    """The texts of a datastore of the scripted model's tokens."""
    from specchat.models.backends.scripted import ScriptedVocabulary

    vocabulary, store = ScriptedVocabulary(), Datastore(datastores_dir() / f"{name}.datastore")
    tokens, texts = store._tokens.tolist(), [b""]
    for token in tokens:
        if token == store.header.separator:
            texts.append(b"")
        else:
            texts[-1] += vocabulary.token_bytes(token)
    return [text.decode() for text in texts[:-1]]


def names_in(name: str) -> list[str]:
    """The files that a datastore says its tokens are from, in order."""
    store = Datastore(datastores_dir() / f"{name}.datastore")
    placed = (store.text_before(store._number << 32 | place, 0) for place in range(store.header.tokens))
    return list(dict.fromkeys(one.name for one in placed if one is not None))


@pytest.fixture
def folder(tmp_path):
    for name, data in {
        "b.txt": b"second text",
        "a.py": "first = 'Füße'".encode(),
        "inner/c.md": b"third",
        "inner/picture.png": b"\x89PNG\0\0\0",
        "inner/latin.txt": b"F\xfc\xdfe",
        ".hidden/secret": b"not this",
        ".env": b"nor this",
        "empty": b" \n",
    }.items():
        file = tmp_path / "texts" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
    (tmp_path / "texts" / "link").symlink_to("/etc/passwd")
    return tmp_path / "texts"


def test_a_folder_becomes_a_datastore_of_its_text_files_whose_size_is_told(folder):
    said = build("mine", str(folder)).stdout
    assert texts_in("mine") == ["first = 'Füße'", "second text", "third"]
    assert names_in("mine") == ["texts/a.py", "texts/b.txt", "texts/inner/c.md"]
    (one,) = datastore_files()
    assert one.header is not None
    size = f"{one.header.file_bytes / 1000:.1f} kB"
    assert f"{one.header.tokens - 3:,} tokens of 3 texts, {size}" in said
    assert one.file.stat().st_mode & 0o077 == 0
    listed = run("list").stdout
    assert f"mine  {size}" in listed
    assert "of 3 texts, for scripted" in listed


def test_the_list_as_json_says_the_same(folder):
    build("mine", str(folder))
    build("broken", str(folder / "b.txt"))
    file = datastores_dir() / "broken.datastore"
    file.write_bytes(file.read_bytes()[:-1])
    listed = {one["name"]: one for one in json.loads(run("list", "--json").stdout)}
    header = read_header(datastores_dir() / "mine.datastore")
    assert (listed["mine"]["target"], listed["mine"]["texts"], listed["mine"]["problem"]) == ("scripted", 3, None)
    assert listed["mine"]["tokens"] == header.tokens - 3
    assert listed["mine"]["bytes"] == header.file_bytes
    assert "its header says" in listed["broken"]["problem"]


def test_without_datastores_the_list_as_json_is_empty():
    assert json.loads(run("list", "--json").stdout) == []


def test_one_text_is_not_told_as_texts(folder):
    assert " of 1 text, " in build("mine", str(folder / "b.txt")).stdout
    assert " of 1 text, for scripted, built " in run("list").stdout


def test_chats_are_read_only_where_they_are_asked_for(folder):
    connection, _ = open_to_write(default_path())
    chats = Chats(connection)
    chats.save(ChatRecord("c", "title", "2026-01-01", "2026-01-01"))
    chats.add("c", StoredMessage("m", None, "user", "what was said", "2026-01-01"))
    chats.add("c", StoredMessage("n", "m", "assistant", "what was answered", "2026-01-02"))
    connection.close()
    build("files", str(folder / "b.txt"))
    build("both", str(folder / "b.txt"), "--chats")
    assert texts_in("files") == ["second text"]
    assert texts_in("both") == ["second text", "what was said", "what was answered"]
    assert names_in("both") == ["b.txt", "the chat title"]


def test_tokens_bound_what_is_taken(folder):
    found = build("small", str(folder), "--tokens", "5")
    assert read_header(datastores_dir() / "small.datastore").tokens == 6
    assert "stopped at 5 tokens" in found.stderr


def test_what_cannot_be_built_is_refused_and_leaves_nothing(folder, tmp_path):
    build("mine", str(folder))
    assert "--replace" in str(error_of("build", "mine", str(folder), "--pair", "scripted"))
    assert "add --chats" in str(error_of("build", "other", "--pair", "scripted"))
    assert "no text was found" in str(error_of("build", "other", "--chats", "--pair", "scripted"))
    assert "is not UTF-8 text" in str(error_of("build", "other", str(folder / "inner/latin.txt"), "--pair", "scripted"))
    assert "cannot be read" in str(error_of("build", "other", str(tmp_path / "nowhere"), "--pair", "scripted"))
    assert "is not a valid name" in str(error_of("build", "../other", str(folder), "--pair", "scripted"))
    assert isinstance(error_of("build", "other", str(folder), "--pair", "script"), UsageError)
    assert "no pair is called ''" in str(error_of("build", "other", str(folder), "--pair", ""))
    assert [file.name for file in datastores_dir().iterdir()] == ["mine.datastore"]


def test_states_of_every_token_are_kept_where_that_is_asked_for(folder, monkeypatch):
    build("plain", str(folder))
    build("stated", str(folder), "--states")
    plain, stated = (Datastore(datastores_dir() / f"{name}.datastore") for name in ("plain", "stated"))
    assert texts_in("stated") == texts_in("plain")
    assert (plain.states.shape[1], stated.header.state_width) == (0, ScriptedVocabulary().size)
    known = stated.states.any(axis=1)
    ends = stated._tokens == stated.header.separator
    assert not known[ends].any()
    assert known[~ends].all()
    assert names_in("stated") == names_in("plain")
    monkeypatch.setattr(datastore, "_MOST_STATES", 8)
    said = build("fewer", str(folder), "--states").stderr
    assert "stopped at 8 tokens; --states keeps no more" in said
    said = build("fewest", str(folder), "--states", "--tokens", "4").stderr
    assert "stopped at 4 tokens; --tokens takes more" in said


def test_a_full_disk_leaves_the_old_datastore_as_it_was(folder, monkeypatch):
    build("mine", str(folder / "b.txt"))

    def full(*arguments):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr(os, "fsync", full)
        error = error_of("build", "mine", str(folder), "--pair", "scripted", "--replace")
    assert isinstance(error, StoreError)
    assert "cannot be written: No space left on device" in str(error)
    assert texts_in("mine") == ["second text"]
    assert [file.name for file in datastores_dir().iterdir()] == ["mine.datastore"]


def test_remove_deletes_what_is_named_and_nothing_where_a_name_is_wrong(folder):
    for name in ("one", "two"):
        build(name, str(folder))
    assert "did you mean 'two'" in str(error_of("remove", "one", "tow"))
    assert len(datastore_files()) == 2
    assert "add --yes" in str(error_of("remove", "one"))
    assert len(datastore_files()) == 2
    size = (datastores_dir() / "one.datastore").stat().st_size
    assert f"removed one, {size / 1000:.1f} kB" in run("remove", "one", "--yes").stdout
    assert [one.name for one in datastore_files()] == ["two"]


def test_a_damaged_datastore_is_listed_with_what_is_wrong_and_can_be_removed(folder):
    build("mine", str(folder))
    file = datastores_dir() / "mine.datastore"
    file.write_bytes(file.read_bytes()[:-1])
    assert "cannot be used" in run("list").stdout
    assert "bytes, and its header says" in run("list").stdout
    assert run("remove", "mine", "--yes").exit_code == 0


def test_a_reply_is_drafted_from_the_datastore(folder):
    (folder / "recited.txt").write_text("\n".join(PASSAGES))
    build("said", str(folder / "recited.txt"))
    asked = ["run", "hello", "--pair", "scripted", "--temperature", "0", "--max-tokens", "40", "--output", "json"]
    drafting = ["--drafter", "datastore", "--controller", "fixed", "--set", "datastore.store=said"]
    found = subprocess.run(
        [sys.executable, "-m", "specchat", *asked, *drafting], capture_output=True, text=True, timeout=60
    )
    assert found.returncode == 0, found.stderr
    assert json.loads(found.stdout)["stats"]["acceptance_length"] > 2
