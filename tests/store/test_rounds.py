"""The rounds of replies are stored beside them, forgotten before the chats are, and come in with older files."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import msgspec
import pytest
from kit import answered, chat, said, talk

from specchat.errors import UsageError
from specchat.store import database
from specchat.store.chat_json import read_json, take_in, write_json
from specchat.store.chats import Chats
from specchat.store.database import open_to_write
from specchat.store.records import LARGEST_ROUNDS_BYTES, StoredMessage


def reply(id: str, rounds: bytes, parent: str | None = None, status: str = "done") -> StoredMessage:
    return msgspec.structs.replace(answered(id, "text", parent, status), rounds=rounds)


def stored(chats: Chats, id: str = "first") -> list[bytes]:
    return [message.rounds for message in chats.chat(id)[1]]


def test_rounds_are_written_with_a_reply_or_when_it_ends(chats: Chats) -> None:
    chats.save(chat())
    chats.add("first", said("a", "hi"))
    chats.add("first", reply("b", b"early", "a"))
    chats.add("first", reply("c", b"", "b", "streaming"), "me")
    assert stored(chats) == [b"", b"early", b""]
    chats.update("first", reply("c", b"", "b", "streaming"), "me")
    chats.update("first", reply("c", b"late", "b"))
    chats.update("first", reply("b", b"", "a"))
    assert stored(chats) == [b"", b"early", b"late"], "an update that knows no rounds leaves them"


def test_a_chat_that_is_removed_takes_its_rounds_along(chats: Chats, path: Path) -> None:
    talk(chats, "first", "hi")
    chats.add("first", reply("b", b"rounds"))
    chats.remove("first")
    assert sqlite3.connect(path).execute("SELECT count(*) FROM rounds").fetchone() == (0,)


def test_the_rounds_of_the_oldest_replies_are_forgotten_first_and_the_texts_stay(chats: Chats) -> None:
    chats.save(chat())
    for number in range(5):
        chats.add("first", reply(f"m{number}", bytes(100)))
    chats.forget_rounds(most_bytes=350)
    assert [len(rounds) for rounds in stored(chats)] == [0, 0, 100, 100, 100]
    assert [message.content for message in chats.chat("first")[1]] == ["text"] * 5
    chats.forget_rounds(most_bytes=300)
    assert [len(rounds) for rounds in stored(chats)] == [0, 0, 100, 100, 100]


def test_a_file_from_before_rounds_were_stored_is_brought_up_to_date(path: Path) -> None:
    path.parent.mkdir()
    before = sqlite3.connect(path, isolation_level=None)
    before.executescript("".join(database.MIGRATIONS[:3]) + "PRAGMA user_version = 3;")
    before.execute("INSERT INTO chats VALUES ('a', 'hi', 0, '', '2026', '2027', 'm', NULL, NULL)")
    row = (1, "a", "m", None, "assistant", "text", "2026", "done", None, "[4]", None)
    before.execute(f"INSERT INTO messages VALUES ({', '.join('?' * len(row))})", row)
    before.close()
    chats = Chats(open_to_write(path)[0])
    assert [(message.content, message.rounds) for message in chats.chat("a")[1]] == [("text", b"")]
    chats.update("a", msgspec.structs.replace(chats.chat("a")[1][0], rounds=b"rounds"))
    assert stored(chats, "a") == [b"rounds"]
    assert path.with_name("chats.db.v3.bak").exists()


def test_rounds_are_exported_and_imported_with_their_chat(chats: Chats) -> None:
    text = write_json(chat(), [reply("b", b"\x00\xff rounds")])
    take_in(chats, read_json(text.encode(), "chat.json"))
    assert stored(chats) == [b"\x00\xff rounds"]


@pytest.mark.parametrize(
    ("rounds", "why"),
    [('"no base64!"', "base64"), ("7", "expected"), (f'"{"A" * (LARGEST_ROUNDS_BYTES * 2)}"', "longer than 256 KiB")],
)
def test_rounds_in_a_file_that_no_export_could_have_written_are_refused(rounds: str, why: str) -> None:
    text = write_json(chat(), [reply("b", b"abc")])
    assert '"rounds": "YWJj"' in text
    with pytest.raises(UsageError, match=f"(?i)chat.json.*{why}"):
        read_json(text.replace('"YWJj"', rounds).encode(), "chat.json")


def test_a_column_that_holds_no_bytes_is_no_rounds(chats: Chats, path: Path) -> None:
    talk(chats, "first", "hi")
    other = sqlite3.connect(path, isolation_level=None)
    other.executescript("DROP TABLE rounds; CREATE TABLE rounds (number INTEGER PRIMARY KEY, data);")
    other.execute("INSERT INTO rounds SELECT number, 'text' FROM messages")
    assert stored(Chats(open_to_write(path)[0])) == [b""]
