"""A chat that is removed for good: no file beside the database has its words any more."""

from __future__ import annotations

import sqlite3
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from kit import chat, said, talk

from specchat.config.prompt_files import PromptFiles
from specchat.store import database
from specchat.store.chats import Chats
from specchat.store.database import open_to_write
from specchat.store.prompt_history import History
from specchat.store.writer import Writer, erase

GONE, STAYS = "quixotrope", "zephyrwood"


def files_with(word: str, path: Path) -> set[str]:
    """The files of the state folder in which a word occurs."""
    return {file.name for file in path.parent.rglob("*") if file.is_file() and word.encode() in file.read_bytes()}


@pytest.fixture
def home(path: Path) -> Path:
    """Chats with two copies of older versions, and what was sent. The chat `gone` has words that no other has."""
    path.parent.mkdir()
    older = sqlite3.connect(path, isolation_level=None)
    older.executescript("".join(database.MIGRATIONS[:2]) + "PRAGMA user_version = 2;")
    Chats(older).save(chat("gone", GONE))
    Chats(older).save(chat("stays", STAYS))
    for id, word in (("gone", GONE), ("stays", STAYS)):
        for n in range(100):
            Chats(older)._sql.execute(
                "INSERT INTO messages VALUES (NULL, ?, ?, NULL, 'user', ?, '', 'done', NULL, NULL, NULL)",
                (id, f"m{n}", f"{word} {n}"),
            )
    older.close()
    chats = Chats(open_to_write(path)[0])
    talk(chats, "gone2", f"a second {GONE}", f"an answer: {GONE}", title=f"{GONE} too")
    chats.update("gone2", said("m0", f"{GONE} changed " * 500))
    chats.keep_draft("gone2", f"a draft of {GONE}")
    chats.keep_draft("stays", f"a draft of {STAYS}")
    chats._sql.close()
    sent = History(path.with_name("prompts.jsonl"))
    for text in (f"{GONE} 0", f"{GONE} changed " * 500, f"/rename {GONE} too", f"{STAYS} 0", f"/rename {STAYS}", "hi"):
        sent.add(text)
    return path


HOLDING = {"chats.db", "chats.db.v2.bak", "prompts.jsonl"}


def test_no_file_has_the_words_of_a_chat_that_was_removed(home: Path) -> None:
    assert files_with(GONE, home) == files_with(STAYS, home) == HOLDING
    chats = Chats(open_to_write(home)[0])
    beside = open_to_write(home)[0]  # another specchat keeps the log in place
    beside.execute("SELECT count(*) FROM chats").fetchone()
    with chats.transaction():
        removed = chats.remove("gone", "gone2")
    assert erase(home, chats, removed) == []
    assert files_with(GONE, home) == set()
    assert files_with(STAYS, home) == HOLDING
    assert [summary.id for summary in chats.summaries(STAYS)] == ["stays"]
    assert chats.draft("stays") == f"a draft of {STAYS}"
    assert History(home.with_name("prompts.jsonl")).texts == [f"{STAYS} 0", f"/rename {STAYS}", "hi"]
    copy = sqlite3.connect(home.with_name("chats.db.v2.bak"))
    assert copy.execute("SELECT id FROM chats").fetchall() == [("stays",)]
    assert copy.execute("SELECT count(*) FROM words WHERE words MATCH ?", (STAYS,)).fetchone() == (100,)
    copy.close()


def test_a_chat_that_was_deleted_long_ago_leaves_no_words_either(home: Path) -> None:
    chats = Chats(open_to_write(home)[0])
    for id in ("gone", "gone2"):
        chats.delete(id)
    assert files_with(GONE, home) >= HOLDING
    ago = datetime.now(UTC) - timedelta(days=8)
    chats._sql.execute("UPDATE chats SET deleted = ? WHERE deleted IS NOT NULL", (ago.isoformat(),))
    chats._sql.close()
    writer = Writer(home, remark=print, problem=print, anew=print)
    assert writer.close(30)
    assert files_with(GONE, home) == set()
    assert files_with(STAYS, home) == HOLDING


def test_what_was_read_of_a_chat_goes_with_it(home: Path) -> None:
    files = PromptFiles(home.with_name("prompts"), 1 << 20)
    files.prepare()
    for owner, keys in (("gone2", [b"1" * 32, b"2" * 32]), ("stays", [b"1" * 32, b"3" * 32])):
        files.name(owner, keys)
        for key in keys:
            files.write(key, b"what was read")
    chats = Chats(open_to_write(home)[0])
    assert erase(home, chats, chats.remove("gone2")) == []
    assert [files.has(bytes([digit]) * 32) for digit in b"123"] == [True, False, True]


def test_a_damaged_file_is_named_if_it_holds_the_chat_and_never_changed(home: Path) -> None:
    damaged = [home.with_name(f"chats.db.damaged-{n}") for n in range(3)]
    for file, text in zip(damaged, (b"\xff gone2 \xff" + GONE.encode(), b"another chat", b""), strict=True):
        file.write_bytes(text)
    chats = Chats(open_to_write(home)[0])
    left = erase(home, chats, chats.remove("gone2"))
    assert left == [f"{damaged[0]} holds them still: delete it if no other chat in it is to be saved"]
    assert GONE.encode() in damaged[0].read_bytes()


def test_a_copy_that_cannot_be_changed_is_named(home: Path) -> None:
    home.with_name("chats.db.v2.bak").write_bytes(b"no database" * 1000)
    chats = Chats(open_to_write(home)[0])
    (line,) = erase(home, chats, chats.remove("gone"))
    assert line == f"{home}.v2.bak: the file is damaged; it may hold them still"


def test_what_was_sent_with_files_or_signs_of_its_own_is_forgotten_too(path: Path) -> None:
    path.parent.mkdir()
    sent = History(path.with_name("prompts.jsonl"))
    typed = {"read @notes.md": 'read @notes.md\n\n<file path="notes.md" lines="1">\nx\n</file>',
             "//path": "/path", "mail me@@home": "mail me@home", "/system be brief": "be brief"}  # fmt: skip
    for text in (*typed, "be", "read"):
        sent.add(text)
    sent.forget(typed.values())
    assert History(path.with_name("prompts.jsonl")).texts == ["be", "read"]
