"""`specchat chats`, `--continue` and `--resume` as a user meets them at the shell."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import signal
import sqlite3
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from specchat.cli.arguments import prepared
from specchat.cli.chats import chat_ids
from specchat.store.chats import Chats
from specchat.store.database import default_path, open_to_read, open_to_write
from specchat.store.records import ChatRecord, Facts, StoredMessage

pytestmark = pytest.mark.usefixtures("preloaded")

WHEN = "2026-01-31T12:00:00.000Z"


@pytest.fixture
def kept(away_from_home: None) -> Path:
    path = default_path()
    chats = Chats(open_to_write(path)[0])
    with chats.transaction():
        for id, text in (("abc234", "How does a \x1b[31mtree\x1b[0m work?"), ("abd567", "Rust or Go?")):
            chats.save(ChatRecord(id, text, WHEN, WHEN, leaf="b"))
            chats.add(id, StoredMessage("a", None, "user", text, WHEN))
            chats.add(
                id,
                StoredMessage("b", "a", "assistant", "like \x1b[1mso", WHEN, "done", [5, -6], Facts("smol", 7, "end")),
            )
    chats._sql.close()
    return path


def specchat(*words: str, text: str = "") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "COLUMNS": "100"}
    return subprocess.run(
        [sys.executable, "-m", "specchat", *words],
        capture_output=True,
        text=True,
        input=text,
        timeout=60,
        env=environment,
    )


def refused(ended: subprocess.CompletedProcess[str], code: int) -> str:
    """The one line that says why."""
    assert ended.returncode == code, ended
    assert ended.stdout == ""
    (line,) = ended.stderr.strip().splitlines()
    return line


def test_the_list_shows_every_chat_and_steers_no_terminal(kept):
    ended = specchat("chats", "list")
    assert "abc234" in ended.stdout
    assert "Rust or Go?" in ended.stdout
    assert "\x1b" not in ended.stdout


def test_a_search_is_json_where_a_program_asks(kept):
    (found,) = json.loads(specchat("chats", "search", "rust", "--json").stdout)
    assert (found["id"], found["messages"], found["title"]) == ("abd567", 2, "Rust or Go?")
    assert json.loads(specchat("chats", "search", "nothing like it", "--json").stdout) == []


def test_an_id_may_be_shortened_but_not_too_far(kept):
    shown = specchat("chats", "show", "abc")
    assert "## smol\n\nlike ␛[1mso" in shown.stdout
    assert "several chats begin with 'ab'" in refused(specchat("chats", "show", "ab"), 2)
    assert "did you mean 'abd567'?" in refused(specchat("chats", "show", "abx567"), 2)


def test_what_is_exported_can_be_imported_elsewhere(kept, tmp_path):
    file = tmp_path / "chat.json"
    assert specchat("chats", "export", "abc", str(file)).returncode == 0
    assert "is there already" in refused(specchat("chats", "export", "abc", str(file)), 2)
    assert specchat("chats", "remove", "abc", "--yes").returncode == 0
    assert specchat("chats", "import", str(file)).stdout.startswith("abc234")
    assert specchat("chats", "export", "abc", "--format", "json").stdout == file.read_text()


def test_a_page_goes_to_standard_output_where_no_file_is_named(kept):
    assert specchat("chats", "export", "abd", "-f", "html").stdout.startswith("<!doctype html>")


def test_what_is_no_export_is_refused_before_anything_is_written(kept, tmp_path):
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    specchat("chats", "export", "abc", str(good))
    bad.write_text('{"format": "other"}')
    assert str(bad) in refused(specchat("chats", "import", str(good), str(bad)), 2)
    assert "No such file" in refused(specchat("chats", "import", str(tmp_path / "none.json")), 2)
    assert len(json.loads(specchat("chats", "list", "--json").stdout)) == 2


def test_nothing_is_removed_without_a_yes(kept):
    assert "add --yes" in refused(specchat("chats", "remove", "abc"), 2)
    assert "abc234" in specchat("chats", "list").stdout
    assert specchat("chats", "remove", "abc", "abd", "--yes").stdout == "2 removed\n"
    with open_to_read(kept) as connection:
        assert connection.execute("SELECT count(*) FROM messages").fetchone() == (0,)


def test_the_shell_completes_ids_with_their_titles(kept):
    assert ("abd567", "Rust or Go?") in chat_ids()


def test_the_shell_completes_nothing_where_nothing_is_kept():
    assert chat_ids() == []


@pytest.mark.parametrize("words", [["list"], ["list", "--json"], ["search", "how"], ["show", "abc"]])
def test_output_that_cannot_be_written_is_no_error_of_the_database(kept, words):
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "specchat", "chats", *words]
    with os.fdopen(writer, "wb") as unread:
        ended = subprocess.run(command, stdout=unread, stderr=subprocess.PIPE, timeout=60, check=False)
    assert (ended.returncode, ended.stderr) == (128 + signal.SIGPIPE, b"")
    if os.path.exists("/dev/full"):
        with open("/dev/full", "wb") as full:
            ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, timeout=60, check=False)
        told = b"specchat: standard output cannot be written: No space left on device\n"
        assert (ended.returncode, ended.stderr) == (1, told)


def outcome(ended: subprocess.CompletedProcess[str]) -> tuple[int, str, str]:
    return ended.returncode, ended.stdout, ended.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [(["list"], "no chats have been kept yet\n"), (["search", "two", "words"], "no chat contains 'two words'\n")],
)
def test_a_list_without_any_chat_is_empty_and_no_failure(words, said):
    assert outcome(specchat("chats", *words)) == (0, "", said)
    assert outcome(specchat("chats", *words, "--json")) == (0, "[]\n", "")
    assert not default_path().exists()


def test_a_search_that_finds_nothing_says_so(kept):
    assert outcome(specchat("chats", "search", "nothing like it")) == (0, "", "no chat contains 'nothing like it'\n")


@pytest.mark.parametrize("words", [["-c"], ["-r", "abc"], ["--resume"]])
def test_without_any_chat_that_is_said(words):
    assert "no chats have been kept yet" in refused(specchat(*words), 1)
    assert not default_path().exists()


def test_a_chat_that_does_not_exist_is_told_before_the_screen_is_taken(kept):
    assert "no chat has an id that begins with 'zzz'" in refused(specchat("-r", "zzz"), 2)
    assert "use one of them" in refused(specchat("-c", "-r", "abc"), 2)


@pytest.mark.parametrize(
    ("given", "read"),
    [
        (["-r"], ["-r", ""]),
        (["-r", "abc"], ["-r", "abc"]),
        (["--resume", "--pair", "smol"], ["--resume", "", "--pair", "smol"]),
        (["run", "hi"], ["run", "hi"]),
        (["train", "smol", "--resume", "--seed", "1"], ["train", "smol", "--resume", "--seed", "1"]),
        ([], []),
    ],
)
def test_resume_takes_an_id_or_none(given, read):
    assert prepared(given) == read


def test_a_pipe_gets_whole_ids_and_titles_whatever_the_width(kept):
    chats = Chats(open_to_write(kept)[0])
    long, title = "x" * 64, "How " * 60
    chats.save(ChatRecord(long, title, WHEN, WHEN))
    chats._sql.close()
    lines = specchat("chats", "list").stdout.splitlines()
    assert {line.split()[0] for line in lines} == {"id", long, "abc234", "abd567"}
    assert title.strip() in "\n".join(lines)
    found = specchat("chats", "search", "how").stdout
    assert long in found
    assert "abc234" in found


def test_eighty_columns_keep_every_id(kept):
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"} | {"TERM": "xterm"}
    command = [sys.executable, "-m", "specchat", "chats", "search", "how"]
    ended = subprocess.run(command, stdin=theirs, stdout=theirs, env=environment, timeout=60)
    os.close(theirs)
    shown = re.sub(r"\x1b\[[0-9;]*m", "", os.read(ours, 65536).decode())
    os.close(ours)
    assert ended.returncode == 0
    assert "abc234  " in shown
    assert max(len(line) for line in shown.splitlines()) <= 80


def test_either_all_files_are_taken_in_or_none(kept, tmp_path, monkeypatch):
    file = tmp_path / "chat.json"
    specchat("chats", "export", "abc", str(file))
    text = json.loads(file.read_text())
    text["chat"]["id"], text["chat"]["updated"] = "other2", "not a date"
    (tmp_path / "bad.json").write_text(json.dumps(text))
    line = refused(specchat("chats", "import", str(file), str(tmp_path / "bad.json")), 2)
    assert "updated = 'not a date' is not a time" in line
    assert len(json.loads(specchat("chats", "list", "--json").stdout)) == 2


def test_a_chat_of_no_time_that_came_in_earlier_is_still_listed(kept):
    connection = sqlite3.connect(kept)
    connection.execute("UPDATE chats SET updated = 'not a date' WHERE id = 'abc234'")
    connection.commit()
    connection.close()
    for words in (["list"], ["search", "tree"]):
        ended = specchat("chats", *words)
        assert (ended.returncode, ended.stderr) == (0, "")
        assert "abc234  unknown" in ended.stdout
