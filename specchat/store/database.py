"""The file the chats are in: its tables, bringing it up to date, putting a damaged one aside."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from datetime import datetime
from functools import lru_cache
from itertools import count
from pathlib import Path

from specchat.config import private_dir, state_dir
from specchat.config.kept_files import locked
from specchat.errors import StoreError, cut, short

_TABLES = """
CREATE TABLE chats (
    id TEXT PRIMARY KEY,
    title TEXT NOT NULL,
    renamed INTEGER NOT NULL,
    system TEXT NOT NULL,
    created TEXT NOT NULL,
    updated TEXT NOT NULL,
    leaf TEXT,
    deleted TEXT
) STRICT;

CREATE INDEX chats_by_time ON chats (updated);

CREATE TABLE messages (
    number INTEGER PRIMARY KEY,
    chat TEXT NOT NULL REFERENCES chats (id) ON DELETE CASCADE,
    id TEXT NOT NULL,
    parent TEXT,
    role TEXT NOT NULL,
    content TEXT NOT NULL,
    created TEXT NOT NULL,
    status TEXT NOT NULL,
    owner TEXT,  -- the running specchat that writes this reply
    pieces TEXT,
    facts TEXT,
    UNIQUE (chat, id),
    FOREIGN KEY (chat, parent) REFERENCES messages (chat, id) DEFERRABLE INITIALLY DEFERRED
) STRICT;

CREATE INDEX messages_by_parent ON messages (chat, parent);
CREATE INDEX messages_unfinished ON messages (owner) WHERE status = 'streaming';

CREATE VIRTUAL TABLE words USING fts5 (
    content, content = 'messages', content_rowid = 'number', tokenize = 'unicode61 remove_diacritics 2', prefix = '2 3'
);

CREATE TRIGGER words_added AFTER INSERT ON messages BEGIN
    INSERT INTO words (rowid, content) VALUES (new.number, new.content);
END;

CREATE TRIGGER words_removed AFTER DELETE ON messages BEGIN
    INSERT INTO words (words, rowid, content) VALUES ('delete', old.number, old.content);
END;

CREATE TRIGGER words_changed AFTER UPDATE OF content ON messages BEGIN
    INSERT INTO words (words, rowid, content) VALUES ('delete', old.number, old.content);
    INSERT INTO words (rowid, content) VALUES (new.number, new.content);
END;
"""

_LEFT_OUT = """
ALTER TABLE chats ADD COLUMN sent_from TEXT;
"""

_SPEED_UPS = """
UPDATE messages
SET facts = json_remove(facts, '$.stats.speedup', '$.stats.speedup_source', '$.stats.plain_tokens_per_s')
WHERE CASE WHEN json_valid(facts) THEN json_type(facts, '$.stats.speedup_source') IS NOT NULL ELSE 0 END;
"""
"""Speed-ups used to be computed from a measurement of another hour; they are not based on plain rounds of the reply."""

_ROUNDS = """
CREATE TABLE rounds (
    number INTEGER PRIMARY KEY REFERENCES messages (number) ON DELETE CASCADE,
    data BLOB NOT NULL
) STRICT;
"""
"""In a table of their own, because they are larger than all else, and lists and searches need not read past them."""

_DRAFTS = """
CREATE TABLE drafts (
    chat TEXT PRIMARY KEY REFERENCES chats (id) ON DELETE CASCADE,
    text TEXT NOT NULL
) STRICT;
"""
"""The text that was in the prompt when a chat was left."""

_DRAFTS_WITHOUT_CHAT = """
CREATE TABLE new_drafts (
    chat TEXT UNIQUE REFERENCES chats (id) ON DELETE CASCADE,  -- none: for the next new chat
    text TEXT NOT NULL
) STRICT;

INSERT INTO new_drafts SELECT chat, text FROM drafts;
DROP TABLE drafts;
ALTER TABLE new_drafts RENAME TO drafts;
"""
"""Chats without messages are not stored, and yet something may have been written in their prompt."""

MIGRATIONS: list[str] = [_TABLES, _LEFT_OUT, _SPEED_UPS, _ROUNDS, _DRAFTS, _DRAFTS_WITHOUT_CHAT]
"""Step n leads from version n to n + 1; a step that was released is never edited."""


BUSY_S = 2.0
"""How long to wait for another specchat that is writing."""

_DAMAGED = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})


def default_path() -> Path:
    return state_dir() / "chats.db"


def open_to_write(path: Path, *, suspected: bool = False) -> tuple[sqlite3.Connection, str]:
    """The database, made or brought up to date if need be; raises StoreError with the reason where it cannot be.

    A damaged file is moved aside, and a remark, else empty, says where to. Not every page is looked at unless
    the file is `suspected`: that would take long, and a page that is broken says so when it is read.
    """
    with saying(path):
        private_dir(path.parent)
        _refuse_odd(path)
        # Two processes that start at once must not both migrate, or move aside a file just made.
        with locked(path.with_name(f"{path.name}.lock"), BUSY_S):
            try:
                return _prepared(path, suspected), ""
            except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
                if not is_damage(error):
                    raise
            aside = _move_aside(path)
            return _prepared(path), f"{path.name} was damaged; it is kept as {aside}, and a new one was begun"


@contextmanager
def open_to_read(path: Path) -> Iterator[sqlite3.Connection]:
    """The database for as long as it is being read; raises StoreError where there is none or it cannot be read."""
    with saying(path):
        if not path.exists():
            raise StoreError("no chats have been kept yet")
        _refuse_odd(path)
        with closing(_read_only(path)) as connection:
            _refuse_unknown(connection, path)
            with closing(_up_to_date(connection)) as readable:
                yield readable


@contextmanager
def open_copy(path: Path) -> Iterator[sqlite3.Connection]:
    """A copy of an older version, to be changed as it is; raises StoreError where it cannot be."""
    with saying(path):
        _refuse_odd(path)
        with closing(_connect(path)) as connection:
            _refuse_unknown(connection, path)
            yield connection


@contextmanager
def saying(path: Path) -> Iterator[None]:
    """Turn whatever goes wrong with the file into one line."""
    try:
        yield
    except (sqlite3.Error, UnicodeDecodeError) as error:
        raise StoreError(f"{path}: {_words(error)}") from error
    except TimeoutError:
        raise StoreError(f"{path}: another specchat is busy with it") from None
    except OSError as error:
        raise StoreError(f"{error.filename or path}: {error.strerror or error}") from error


def is_damage(error: BaseException | None) -> bool:
    """Whether the file itself is broken; SQLite reports a broken schema in bytes that are not UTF-8."""
    return isinstance(error, UnicodeDecodeError) or (getattr(error, "sqlite_errorcode", 0) & 0xFF) in _DAMAGED


class _Damaged(sqlite3.DatabaseError):
    """The result of an integrity check that failed."""

    sqlite_errorcode = sqlite3.SQLITE_CORRUPT


def _refuse_odd(path: Path) -> None:
    """SQLite would wait for ever for what comes out of a pipe."""
    if path.exists() and not path.is_file():
        raise StoreError(f"{path}: it is not a regular file")


def _prepared(path: Path, suspected: bool = False) -> sqlite3.Connection:
    os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    for tail in ("", "-wal", "-shm"):
        with suppress(OSError):  # not there, or not ours to close
            path.with_name(path.name + tail).chmod(0o600)
    connection = _connect(path)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        _refuse_unknown(connection, path)
        if found := _outdated(connection):
            copy = path.with_name(f"{path.name}.v{found}.bak")
            os.close(os.open(copy, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600))
            with closing(sqlite3.connect(copy)) as target:
                connection.backup(target)
        _migrate(connection)
        connection.execute("SELECT id FROM chats LIMIT 1").fetchone()
        if suspected and connection.execute("PRAGMA quick_check(1)").fetchone() != ("ok",):
            raise _Damaged
    except BaseException:
        connection.close()
        raise
    return connection


def _connect(path: Path | str, uri: bool = False) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None, uri=uri, check_same_thread=False)
    connection.text_factory = lambda text: text.decode("utf-8", "replace")  # one bad byte must not hide all chats
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA secure_delete = ON")
    return connection


def _read_only(path: Path) -> sqlite3.Connection:
    """Readers of a file in a folder that is not writable must declare that no other process writes to it."""
    address = path.absolute().as_uri()
    for mode in ("mode=ro", "mode=ro&immutable=1"):
        connection = _connect(f"{address}?{mode}", uri=True)
        try:
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        except sqlite3.OperationalError:
            connection.close()
            if "immutable" in mode or os.access(path.parent, os.W_OK):
                raise
        else:
            return connection
    raise AssertionError("the last mode either opens or raises")


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def _refuse_unknown(connection: sqlite3.Connection, path: Path) -> None:
    """Refuse a newer version, and views in the place of tables, other triggers and other virtual tables: their queries
    may never end."""
    found, newest = _version(connection), len(MIGRATIONS)
    if found > newest:
        raise StoreError(f"{path} is of a newer specchat (version {found}, this one knows {newest}); update specchat")
    known = _objects(tuple(MIGRATIONS[:found]))
    for name, (kind, sql) in _objects_of(connection).items():
        if (kind == "trigger" or name in known) and known.get(name) != (kind, sql):
            raise StoreError(f"{path}: not a file of chats as specchat keeps them: {kind} {short(name)} is foreign")


@lru_cache(maxsize=2)
def _objects(migrations: tuple[str, ...]) -> dict[str, tuple[str, str]]:
    """Kind and definition of everything in a database that these migrations made."""
    with closing(sqlite3.connect(":memory:")) as made:
        made.executescript("".join(migrations))
        return _objects_of(made)


def _objects_of(connection: sqlite3.Connection) -> dict[str, tuple[str, str]]:
    """Kind of every table, view and trigger by name, with the definition of those that run other queries."""
    rows = connection.execute("SELECT name, type, sql FROM sqlite_master WHERE type != 'index'")
    return {name: (kind, "" if (sql or "").startswith("CREATE TABLE") else sql or "") for name, kind, sql in rows}


def _outdated(connection: sqlite3.Connection) -> int:
    """The older version that the tables are of; 0 where they are new, or not there yet."""
    found = _version(connection)
    return found if found < len(MIGRATIONS) else 0


def _up_to_date(connection: sqlite3.Connection) -> sqlite3.Connection:
    """The same, or a copy in memory that was brought up to date: reading changes nothing on the disk."""
    if not _outdated(connection):
        return connection
    copy = _connect(":memory:")
    connection.backup(copy)
    _migrate(copy)
    return copy


def _migrate(connection: sqlite3.Connection) -> None:
    found, wanted = _version(connection), len(MIGRATIONS)
    if found == wanted:
        return
    steps = "".join(MIGRATIONS[found:])
    try:
        connection.executescript(f"BEGIN EXCLUSIVE;\n{steps}\nPRAGMA user_version = {wanted};\nCOMMIT;")
    except sqlite3.Error:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _move_aside(path: Path) -> Path:
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    names = (f"{path.name}.damaged-{stamp}{f'-{n}' if n > 1 else ''}" for n in count(1))
    aside = next(file for name in names if not (file := path.with_name(name)).exists())  # clocks are set back
    for tail in ("", "-wal", "-shm"):
        part = path.with_name(path.name + tail)
        if part.exists():
            part.replace(aside.with_name(aside.name + tail))
    return aside


def _words(error: sqlite3.Error | UnicodeDecodeError) -> str:
    if is_damage(error):
        return "the file is damaged"
    match getattr(error, "sqlite_errorcode", 0) & 0xFF:
        case sqlite3.SQLITE_FULL:
            return "the disk is full"
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return "another program holds it locked"
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_PERM:
            return "it cannot be written here"
        case _ if "no such " in str(error):
            return f"not a file of chats as specchat keeps them: {cut(str(error))}"
        case _:
            return cut(str(error))
