"""Damages the file that chats are kept in, then reads all of it, and opens it as the app does."""

from __future__ import annotations

import shutil
from pathlib import Path
from random import Random

from specchat.errors import StoreError
from specchat.store.chats import Chats
from specchat.store.database import open_to_read, open_to_write, saying
from tests.fuzz.chats import CHAT, use, write_chats

ATTEMPTS = 40


def attempt(seed: int, folder: Path) -> None:
    """A damaged file is read as far as it goes or told in one line, and the app can always begin anew."""
    random = Random(seed)
    file = folder / "state" / "chats.db"
    write_chats(file, *(CHAT.title * index for index in range(12)))
    if seed % 10:
        data = file.read_bytes()
        for _ in range(random.randint(1, 3)):
            data = _damaged(data, random)
        file.write_bytes(data)
    damaged = shutil.copy(file, folder / "before.db")
    line = _used(file)
    assert line.isprintable(), repr(line)
    assert not (line and seed % 10 == 0), line
    assert file.read_bytes() == Path(damaged).read_bytes(), "reading changes nothing"
    connection, _ = open_to_write(file, suspected=True)
    try:
        with saying(file):
            chats = Chats(connection)
            with chats.transaction():
                chats.save(CHAT)
            assert CHAT.id in use(chats)
    finally:
        connection.close()


def _used(file: Path) -> str:
    """What was said about the file where it could not be read; empty where all of it could."""
    try:
        with open_to_read(file) as connection:
            use(Chats(connection))
    except StoreError as error:
        return str(error)
    return ""


def _damaged(data: bytes, random: Random) -> bytes:
    at = random.randrange(len(data) or 1)
    page = at // 4096 * 4096
    return random.choice((
        data[:at], data[:at] + bytes([random.randrange(256)]) + data[at + 1 :],
        data[:at] + random.randbytes(4) + data[at + 4 :],
        data[:page] + random.randbytes(4096) + data[page + 4096 :], data[:page] + bytes(4096) + data[page + 4096 :],
        data[:page] + data[-4096:] + data[page + 4096 :], data.replace(b"Why", b"\xff\xfe\x1b"),
        data.replace(b"2026", b"\x00026"),
        data.replace(b"done", b"d\x1b[e"), data.replace(b'"smol"', b'"sm\x00l'), data.replace(b"user", b"tool"),
    ))  # fmt: skip
