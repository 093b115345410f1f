"""Out into a file and back in: the same chat."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from sqlite3 import Connection
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit import WHEN, answered, chat, said

from specchat.errors import UsageError
from specchat.store.chat_json import read_file, read_json, take_in, write_json
from specchat.store.chats import Chats
from specchat.store.database import open_to_write
from specchat.store.records import ChatRecord, Facts, StoredMessage

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
JSON = st.recursive(st.none() | st.booleans() | st.integers(-(2**53), 2**53) | TEXT, st.lists, max_leaves=4)
TABLE = st.dictionaries(TEXT, JSON, max_size=3)
FACTS = st.builds(
    Facts, TEXT, st.none() | st.integers(0, 2**60), st.none() | TEXT, TABLE, st.none() | TABLE, st.none() | TABLE
)


@st.composite
def whole_chats(draw: Any) -> tuple[ChatRecord, list[StoredMessage]]:
    messages: list[StoredMessage] = []
    for index in range(draw(st.integers(0, 8))):
        parent = draw(st.sampled_from([None, *(message.id for message in messages)]))
        role = draw(st.sampled_from(["user", "assistant"]))
        status = draw(st.sampled_from(["done", "interrupted"]))
        pieces, facts = draw(st.lists(st.integers(-9, 9), max_size=4)), draw(st.none() | FACTS)
        messages.append(StoredMessage(f"m{index}", parent, role, draw(TEXT), WHEN, status, pieces, facts))
    leaf = draw(st.sampled_from([None, *(message.id for message in messages)]))
    return ChatRecord("id", draw(TEXT), WHEN, WHEN, draw(st.booleans()), draw(TEXT), leaf), messages


@pytest.fixture(scope="module")
def connection(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connection]:
    connection = open_to_write(tmp_path_factory.mktemp("store") / "chats.db")[0]
    yield connection
    connection.close()


@given(whole=whole_chats())
def test_what_was_exported_comes_back_the_same(
    connection: Connection, whole: tuple[ChatRecord, list[StoredMessage]]
) -> None:
    chat, messages = whole
    connection.execute("DELETE FROM chats")
    chats = Chats(connection)
    text = write_json(chat, messages)
    with chats.transaction():
        assert take_in(chats, read_json(text.encode(), "chat.json")) == "id"
    assert chats.chat("id") == (chat, messages)
    assert write_json(*chats.chat("id")) == text


def test_a_file_without_end_is_not_read_to_its_end(tmp_path: Path) -> None:
    endless = tmp_path / "endless.json"
    with endless.open("wb") as file:
        file.truncate(1 << 40)  # takes no room on the disk
    with pytest.raises(UsageError, match=r"endless\.json: it is larger than 64 MiB"):
        read_file(endless)


def test_a_chat_whose_id_is_taken_comes_in_as_a_copy(chats: Chats) -> None:
    exported = read_json(write_json(chat(), [said("a", "hi"), answered("b", "ho", "a")]).encode(), "f")
    assert take_in(chats, exported) == "first"
    copy = take_in(chats, exported)
    assert copy != "first"
    assert chats.chat(copy)[1] == chats.chat("first")[1]


def test_a_reply_that_was_being_written_comes_in_as_interrupted(chats: Chats) -> None:
    exported = read_json(write_json(chat(), [answered("a", "ha", None, "streaming")]).encode(), "f")
    assert chats.chat(take_in(chats, exported))[1][0].status == "interrupted"


def broken(change: Callable[[dict[str, Any]], Any]) -> bytes:
    data = json.loads(write_json(chat(), [said("a", "hi"), answered("b", "ho", "a")]))
    change(data)
    return json.dumps(data).encode()


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"# A chat", "this is not JSON"),
        (b"\xff\xfe", "this is not JSON"),
        (b"[" * 100_000, "this is not JSON"),
        (b"[]", "not a chat that specchat exported"),
        (b'{"format": "other"}', "not a chat that specchat exported"),
        (broken(lambda d: d.update(version=2)), "version = 2, and this specchat reads version 1"),
        (broken(lambda d: d.pop("messages")), "missing required field messages"),
        (
            broken(lambda d: d["messages"][1].update(parent="c")),
            r"messages\[1\]: parent = 'c' is not an earlier message",
        ),
        (broken(lambda d: d["messages"][0].update(parent="b")), r"messages\[0\]: parent = 'b'"),
        (broken(lambda d: d["messages"][1].update(id="a")), r"messages\[1\]: id = 'a'"),
        (broken(lambda d: d["messages"][1].update(role="tool")), r"'tool'.*messages\[1\]\.role"),
        (broken(lambda d: d["messages"][1].update(content=3)), r"Expected str, got int.*messages\[1\]\.content"),
        (broken(lambda d: d["chat"].update(id="../../x")), "is not an id"),
        (broken(lambda d: d["chat"].update(leaf="c")), "leaf = 'c' is not a message of it"),
        (broken(lambda d: d["chat"].update(sent_from="c")), "sent_from = 'c' is not a message of it"),
        (
            broken(lambda d: d["chat"].update(updated="not a date")),
            "chat: updated = 'not a date' is not a time, such as 20",
        ),
        (broken(lambda d: d["chat"].update(created="2026-02-30T12:00:00.000Z")), "chat: created = .* is not a time"),
        (broken(lambda d: d["chat"].update(updated="9999-12-31T23:59:59.999Z")), "chat: updated = .* is not a time"),
        (broken(lambda d: d["messages"][1].update(created="1")), r"messages\[1\]: created = '1' is not a time"),
        (broken(lambda d: d["chat"].update(title="x" * 10_001)), "title is longer than 10000 characters"),
        (broken(lambda d: d["chat"].update(title="\ud800")), "this is not JSON|cannot be written again"),
        (broken(lambda d: d.update(messages=d["messages"][:1] * 100_001)), "more than 100000 messages"),
        (broken(lambda d: d["messages"][0].update(parent="a")), r"messages\[0\]: parent = 'a'"),
    ],
)
def test_what_is_no_export_is_refused_in_one_line(data: bytes, problem: str) -> None:
    with pytest.raises(UsageError, match=rf"^some\.json: .*{problem}") as refused:
        read_json(data, "some.json")
    assert "\n" not in str(refused.value)
