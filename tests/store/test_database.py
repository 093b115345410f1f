"""Files as they are found: none, old, new, damaged, locked, where nothing can be written."""

from __future__ import annotations

import json
import os
import sqlite3
import stat
import subprocess
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
from kit import chat, talk

from specchat.errors import StoreError
from specchat.store import database
from specchat.store.chats import Chats
from specchat.store.database import open_to_read, open_to_write
from specchat.tui.state.chat import Chat as ChatOnScreen
from specchat.tui.state.stored_chat import FORMATS, turn_of
from specchat.tui.text.numbers import when

NEWEST = len(database.MIGRATIONS)


def kept(path: Path) -> list[str]:
    with open_to_read(path) as connection:
        return [summary.id for summary in Chats(connection).summaries()]


def test_the_first_opening_makes_a_file_for_its_owner_alone(path: Path) -> None:
    connection, remark = open_to_write(path)
    assert remark == ""
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    pragmas = {name: connection.execute(f"PRAGMA {name}").fetchone()[0] for name in
               ("journal_mode", "synchronous", "foreign_keys", "user_version")}  # fmt: skip
    assert pragmas == {"journal_mode": "wal", "synchronous": 1, "foreign_keys": 1, "user_version": NEWEST}


def test_reading_makes_nothing(path: Path) -> None:
    with pytest.raises(StoreError, match="no chats have been kept yet"), open_to_read(path):
        pass
    assert not path.parent.exists()


def test_an_older_file_is_copied_and_then_brought_up_to_date(path: Path, chats: Chats, monkeypatch) -> None:
    talk(chats, "a", "hi")
    monkeypatch.setattr(database, "MIGRATIONS", [*database.MIGRATIONS, "ALTER TABLE chats ADD COLUMN mood TEXT;"])
    connection = open_to_write(path)[0]
    assert connection.execute("SELECT id, mood FROM chats").fetchall() == [("a", None)]
    copy = path.with_name(f"chats.db.v{NEWEST}.bak")
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    before = sqlite3.connect(copy)
    assert before.execute("PRAGMA user_version").fetchone() == (NEWEST,)
    assert before.execute("SELECT id FROM chats").fetchall() == [("a",)]


@pytest.fixture
def first(path: Path) -> list[tuple]:
    """A file as the first version left it; what stands in its tables."""
    path.parent.mkdir()
    connection = sqlite3.connect(path, isolation_level=None)
    connection.executescript(database.MIGRATIONS[0] + "PRAGMA user_version = 1; PRAGMA journal_mode = WAL;")
    connection.execute("INSERT INTO chats VALUES ('a', 'hi', 1, 'be brief', '2026', '2027', 'n', NULL)")
    for number, message in enumerate(("m", "n")):
        parent = "m" if number else None
        connection.execute(
            "INSERT INTO messages VALUES (?, 'a', ?, ?, ?, ?, '2026', 'done', NULL, '[3]', NULL)",
            (number, message, parent, "assistant" if number else "user", f"text of {message}"),
        )
    rows = connection.execute("SELECT * FROM messages").fetchall()
    connection.close()
    return rows


def test_a_file_of_the_first_version_is_read_as_it_is(path: Path, first: list[tuple]) -> None:
    before = path.read_bytes()
    with open_to_read(path) as connection:
        row, messages = Chats(connection).chat("a")
        assert [summary.id for summary in Chats(connection).summaries("text")] == ["a"]
    assert (row.title, row.renamed, row.system, row.leaf, row.sent_from) == ("hi", True, "be brief", "n", None)
    assert [message.content for message in messages] == ["text of m", "text of n"]
    assert path.read_bytes() == before
    assert not list(path.parent.glob("*.bak"))


def test_a_file_of_the_first_version_is_brought_up_to_date_without_loss(path: Path, first: list[tuple]) -> None:
    connection = open_to_write(path)[0]
    assert connection.execute("SELECT * FROM messages").fetchall() == first
    chats = Chats(connection)
    row, _ = chats.chat("a")
    chats.save(msgspec.structs.replace(row, sent_from="n"))
    assert chats.chat("a")[0] == msgspec.structs.replace(row, sent_from="n")
    assert kept(path) == ["a"]
    assert path.with_name("chats.db.v1.bak").exists()


def test_a_draft_is_kept_with_its_chat_and_leaves_with_it(path: Path, first: list[tuple]) -> None:
    with open_to_read(path) as connection:
        assert Chats(connection).draft("a") == ""
    chats = Chats(open_to_write(path)[0])
    chats.keep_draft("a", "one")
    chats.keep_draft("a", "two \ud800")
    chats.keep_draft("nobody's", "three")
    assert (chats.draft("a"), chats.draft("nobody's")) == ("two ?", "")
    chats.keep_draft("a", "")
    assert chats.draft("a") == ""
    chats.keep_draft("a", "four")
    chats.remove("a")
    assert chats.draft("a") == ""


def test_speed_ups_without_plain_rounds_are_forgotten_and_nothing_else(path: Path, first: list[tuple]) -> None:
    old = {"rounds": 3, "speedup": 3.55, "speedup_source": "measured", "plain_tokens_per_s": 70.0}
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("UPDATE messages SET facts = ? WHERE id = 'n'", (json.dumps({"pair": "smol", "stats": old}),))
    connection.execute("UPDATE messages SET facts = 'no JSON' WHERE id = 'm'")
    connection.close()
    opened = open_to_write(path)[0]
    damaged, kept = (row[0] for row in opened.execute("SELECT facts FROM messages ORDER BY number"))
    assert damaged == "no JSON"
    assert json.loads(kept) == {"pair": "smol", "stats": {"rounds": 3}}
    copy = sqlite3.connect(path.with_name("chats.db.v1.bak"))
    assert copy.execute("SELECT facts FROM messages WHERE id = 'n'").fetchone() == (
        json.dumps({"pair": "smol", "stats": old}),
    )


def test_a_step_that_fails_leaves_the_file_as_it_was(path: Path, chats: Chats, monkeypatch) -> None:
    talk(chats, "a", "hi")
    broken = [*database.MIGRATIONS, "ALTER TABLE chats ADD COLUMN mood TEXT; INSERT INTO nowhere VALUES (1);"]
    with monkeypatch.context() as patch:
        patch.setattr(database, "MIGRATIONS", broken)
        with pytest.raises(StoreError, match="nowhere"):
            open_to_write(path)
    connection = open_to_write(path)[0]
    assert connection.execute("PRAGMA user_version").fetchone() == (NEWEST,)
    assert "mood" not in [column[1] for column in connection.execute("PRAGMA table_info(chats)")]


@pytest.mark.parametrize("opening", [open_to_write, lambda path: open_to_read(path).__enter__()])
def test_a_newer_file_is_refused_and_not_touched(path: Path, chats: Chats, opening) -> None:
    chats._sql.execute("PRAGMA user_version = 7")
    with pytest.raises(StoreError, match=r"is of a newer specchat \(version 7, this one knows \d\)"):
        opening(path)
    assert chats._sql.execute("PRAGMA user_version").fetchone() == (7,)


@pytest.mark.parametrize("damage", [b"this is no database" * 400, b"SQLite format 3\0" + b"\xff" * 5000])
def test_a_damaged_file_is_moved_aside_and_a_new_one_begun(path: Path, damage: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(damage)
    _, remark = open_to_write(path)
    aside = next(path.parent.glob("chats.db.damaged-*"))
    assert str(aside) in remark
    assert aside.read_bytes() == damage
    assert kept(path) == []
    assert open_to_write(path)[1] == ""


def test_a_file_that_is_suspected_is_looked_at_page_by_page(path: Path, chats: Chats) -> None:
    talk(chats, "a", *["a long message " * 200] * 50)
    chats._sql.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    chats._sql.close()
    data = bytearray(path.read_bytes())
    data[40 * 4096 : 60 * 4096] = b"\xaa" * (20 * 4096)
    path.write_bytes(data)
    assert open_to_write(path)[1] == ""
    assert "damaged" in open_to_write(path, suspected=True)[1]


def test_a_locked_file_is_said_to_be_locked(path: Path, chats: Chats, monkeypatch) -> None:
    monkeypatch.setattr(database, "BUSY_S", 0.05)
    other = open_to_write(path)[0]
    chats._sql.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreError, match="another program holds it locked"), database.saying(path):
        Chats(other).save(chat())


def test_where_no_folder_can_be_made_the_reason_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"file: (File exists|Not a directory)"):
        open_to_write(tmp_path / "file" / "chats.db")


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_is_no_regular_file_is_refused_and_stays(path: Path, make: Callable[[Path], None]) -> None:
    path.parent.mkdir(exist_ok=True)
    make(path)
    with pytest.raises(StoreError, match=rf"^{path}: it is not a regular file$"):
        open_to_write(path)
    with pytest.raises(StoreError, match=rf"^{path}: it is not a regular file$"), open_to_read(path):
        pass
    assert not path.is_file()


def test_a_full_disk_is_said_and_what_was_written_stays(path: Path, chats: Chats) -> None:
    talk(chats, "a", "hi")
    pages = chats._sql.execute("PRAGMA page_count").fetchone()[0]
    chats._sql.execute(f"PRAGMA max_page_count = {pages + 2}")
    with pytest.raises(StoreError, match="the disk is full"), database.saying(path):
        talk(chats, "b", "x" * 1_000_000)
    assert kept(path) == ["a"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of a few pages, where this machine lets us have one."""
    place = tmp_path / "disk"
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", place], capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    yield place
    subprocess.run(["umount", "--lazy", place], check=True)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="mounts a small file system")
def test_a_disk_without_room_is_survived(small_disk: Path) -> None:
    path = small_disk / "chats.db"
    connection, _ = open_to_write(path)
    chats = Chats(connection)
    talk(chats, "a", "hi")
    with pytest.raises(StoreError, match="the disk is full"), database.saying(path):
        talk(chats, "b", "x" * 300_000)
    talk(chats, "c", "a short one still fits")
    assert sorted(kept(path)) == ["a", "c"]
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_can_still_be_read(path: Path, chats: Chats) -> None:
    talk(chats, "a", "hi")
    chats._sql.close()
    path.parent.chmod(0o500)
    try:
        assert kept(path) == ["a"]
        with pytest.raises(StoreError):
            open_to_write(path)
    finally:
        path.parent.chmod(0o700)


def poked(path: Path, *statements: str) -> None:
    """Change rows as no specchat would."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA foreign_keys = OFF")
    for statement in statements:
        connection.execute(statement)
    connection.close()


BAD_ROWS = {
    "a time that is none": "UPDATE chats SET updated = 'not a date', created = ''",
    "a title that is no text": "UPDATE chats SET title = CAST(x'ff1b5b' AS TEXT)",
    "a cycle": "UPDATE messages SET parent = 'm3' WHERE id = 'm0'",
    "an answer to itself": "UPDATE messages SET parent = 'm1' WHERE id = 'm1'",
    "a parent that is lost": "UPDATE messages SET parent = 'gone' WHERE id = 'm2'",
    "a leaf that is lost": "UPDATE chats SET leaf = 'gone', sent_from = 'gone'",
    "figures that are none": 'UPDATE messages SET facts = \'{"seed": "x"}\', pieces = \'["a"]\'',
    "figures that are no JSON": "UPDATE messages SET facts = '{', pieces = '['",
    "a word that is no status": "UPDATE messages SET status = 'gone', role = 'tool'",
}


@pytest.mark.parametrize("what", BAD_ROWS)
def test_a_row_that_cannot_be_so_keeps_no_other_chat_from_being_read(path: Path, chats: Chats, what: str) -> None:
    talk(chats, "bad", "one", "two", "three", "four")
    poked(path, BAD_ROWS[what])
    talk(chats, "good", "hello")
    with open_to_read(path) as connection:
        reader = Chats(connection)
        summaries = reader.summaries()
        assert {summary.id for summary in summaries} == {"bad", "good"}
        assert all(when(summary.updated, datetime.now(UTC)) for summary in summaries)
        row, messages = reader.chat("bad")
        assert [message.content for message in messages] == ["one", "two", "three", "four"]
        screen = ChatOnScreen()
        screen.open_stored(row, [turn_of(message) for message in messages])
        assert {turn.id for turn in screen.branches} == {"m0", "m1", "m2", "m3"}
        for write in FORMATS.values():
            assert "four" in write(row, messages) or what != "a leaf that is lost"


def test_a_file_that_others_could_read_is_closed_to_them(path: Path, chats: Chats) -> None:
    talk(chats, "a", "hi")
    others = [path, path.with_name("chats.db-wal"), path.with_name("chats.db-shm")]
    for file in others:
        file.chmod(0o644)
    open_to_write(path)[0].close()
    assert [stat.S_IMODE(file.stat().st_mode) for file in others if file.exists()] == [0o600] * 3


def listed(path: Path) -> None:
    with open_to_read(path) as connection:
        Chats(connection).summaries()


def test_the_file_of_another_program_is_told_in_one_line(path: Path) -> None:
    path.parent.mkdir()
    poked(path, "CREATE TABLE chats (name INTEGER)", f"PRAGMA user_version = {NEWEST}")
    for opening in (open_to_write, listed):
        with pytest.raises(StoreError, match=r"chats\.db: not a file of chats as specchat keeps them: no such"):
            opening(path)


ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT {0} FROM n"
COLUMNS = {
    "chats": "i AS id, i AS title, i AS created, i AS updated, NULL AS leaf, NULL AS deleted",
    "messages": "i AS number, 'a' AS chat, i AS id, '' AS content",
    "words_docsize": "i AS id",
    "words_idx": "i AS segid",
}


@pytest.mark.parametrize("name", COLUMNS)
def test_a_view_without_an_end_is_refused_where_a_table_belongs(path: Path, chats: Chats, name: str) -> None:
    talk(chats, "a", "hi")
    chats._sql.close()
    poked(path, "PRAGMA writable_schema = ON", f"DELETE FROM sqlite_master WHERE tbl_name = '{name}'")
    poked(path, f"CREATE VIEW {name} AS {ENDLESS.format(COLUMNS[name])}")
    for opening in (open_to_write, listed):
        with pytest.raises(StoreError, match=rf"not a file of chats as specchat keeps them: view '{name}' is foreign"):
            opening(path)


def test_a_trigger_without_an_end_is_refused_and_a_view_of_the_users_is_not(path: Path, chats: Chats) -> None:
    talk(chats, "a", "hi")
    poked(path, "CREATE VIEW mine AS SELECT title FROM chats")
    assert kept(path) == ["a"]
    endless = f"DELETE FROM drafts WHERE text IN ({ENDLESS.format('i')})"
    poked(path, f"CREATE TRIGGER t AFTER INSERT ON messages BEGIN {endless}; END")
    for opening in (open_to_write, listed):
        with pytest.raises(StoreError, match="trigger 't' is foreign"):
            opening(path)


def test_an_older_file_with_a_view_is_refused_before_it_is_brought_up_to_date(path: Path, first: list[tuple]) -> None:
    poked(path, "ALTER TABLE chats RENAME TO old", f"CREATE VIEW chats AS {ENDLESS.format(COLUMNS['chats'])}")
    for opening in (open_to_write, listed):
        with pytest.raises(StoreError, match="view 'chats' is foreign"):
            opening(path)


def test_a_second_damaged_file_of_the_same_second_keeps_the_first(path: Path, monkeypatch) -> None:
    class Stopped(datetime):
        @classmethod
        def now(cls, tz=None) -> datetime:
            return datetime(2026, 1, 31, tzinfo=tz)

    monkeypatch.setattr(database, "datetime", Stopped)
    path.parent.mkdir()
    for damage in (b"one " * 1000, b"two " * 1000):
        path.write_bytes(damage)
        open_to_write(path)[0].close()
    assert [file.read_bytes()[:4] for file in sorted(path.parent.glob("chats.db.damaged-*"))] == [b"one ", b"two "]
