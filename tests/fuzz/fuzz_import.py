"""Damages an exported chat, imports it beside another one, and uses what came in."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

from specchat.errors import SpecchatError
from specchat.store.chat_json import read_file, take_in, write_json
from specchat.store.chats import Chats
from specchat.store.database import open_to_write
from tests.fuzz.chats import CHAT, MESSAGES, exported_again, use, write_chats

ATTEMPTS = 60

VALUES: tuple[Any, ...] = (
    None, True, 0, -1, 2**63, 10**30, 1e308, "", "x", "a", "b", "d", "zzz", "first", "not a date", "2026-01-31",
    "0001-01-01T00:00:00.000Z", "9999-12-31T23:59:59.999Z", "2026-02-30T12:00:00.000Z", "\x1b]52;c;x\x07",
    "\u202e\u0000\n", "é" * 9000,
    "../../x", [], {}, [[]], [None], [10**30, -5, 0], {"": None}, {"a": [{"b": 1}]}, "tool", "streaming", "\ud800",
)  # fmt: skip


def attempt(seed: int, folder: Path) -> None:
    """Import a damaged chat: all of it comes in and can be used, or nothing does and one line says why."""
    random = Random(seed)
    whole = seed % 10 == 0
    value = json.loads(write_json(CHAT, MESSAGES))
    for _ in range(0 if whole else random.randint(1, 3)):
        _damage(value, random)
    text = json.dumps(value, ensure_ascii=random.random() < 0.5)
    data = text.encode("utf-8", "surrogatepass")
    if not whole and random.random() < 0.2:
        data = _bytes_changed(data, random)
    (folder / "chat.json").write_bytes(data)

    write_chats(folder / "chats.db")
    connection, _ = open_to_write(folder / "chats.db")
    chats = Chats(connection)
    try:
        before = chats.chat(CHAT.id)
        refused = _imported(chats, folder / "chat.json")
        assert not (whole and refused), refused
        assert len(use(chats)) == (1 if refused else 2)
        assert chats.chat(CHAT.id) == before
        if not refused:
            for id in use(chats):
                exported_again(chats, id)
    finally:
        connection.close()


def _imported(chats: Chats, file: Path) -> str:
    """Why the file was refused, in one short line; empty where it came in."""
    try:
        read = read_file(file)
        with chats.transaction():
            take_in(chats, read)
    except SpecchatError as error:
        refused = error
    else:
        return ""
    line = str(refused)
    assert line.startswith(str(file)), line
    assert line.isprintable(), repr(line)
    assert len(line) < 600, len(line)
    assert refused.exit_code == 2
    return line


def _damage(value: Any, random: Random) -> None:
    """Change one place of it: another value, nothing, something new, or the same twice."""
    places = [(value, key) for key in value]
    if isinstance(chat := value.get("chat"), dict):
        places += [(chat, key) for key in chat]
    if isinstance(messages := value.get("messages"), list):
        places += [(messages, index) for index in range(len(messages))]
        inner = [one for one in messages if isinstance(one, dict)]
        inner += [one["facts"] for one in inner if isinstance(one.get("facts"), dict)]
        places += [(one, key) for one in inner for key in one]
    if not places:
        return
    table, key = random.choice(places)
    match random.randrange(10):
        case 0:
            del table[key]
        case 1 if isinstance(table, list):
            table.insert(random.randint(0, len(table)), json.loads(json.dumps(table[key])))
        case 1 | 2 if isinstance(table, dict):
            table[random.choice(("new", "id", "parent", "status", "pieces", "sent_from", "\x1b"))] = _value(random)
        case _:
            table[key] = _value(random)


def _value(random: Random) -> Any:
    if random.random() < 0.05:
        deep: Any = 1
        for _ in range(random.choice((40, 300, 900))):
            deep = {"a": deep} if random.random() < 0.5 else [deep]
        return deep
    return json.loads(json.dumps(random.choice(VALUES)))


def _bytes_changed(data: bytes, random: Random) -> bytes:
    at = random.randrange(len(data))
    return random.choice((
        data[:at], data[:at] + bytes([random.randrange(256)]) + data[at + 1 :], data[:at] + b"\xff" + data[at:],
        b"\xef\xbb\xbf" + data, data.decode("utf-8", "replace").encode("utf-16"), b"[" * 100_000, b"", b"\x00" * 100,
        data[:at] + data[at + 1 :], data + data, data[:at] + data[at:].replace(b"1", b"9" * 5000, 1),
    ))  # fmt: skip
