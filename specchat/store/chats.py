"""Questions to the stored chats and changes of them, as SQL over one connection."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar, get_args

import msgspec

from specchat.config.file_reading import UNREADABLE
from specchat.errors import StoreError, UsageError, nearest
from specchat.store.records import ChatRecord, Facts, Status, StoredMessage, Summary, now

KEPT_DELETED = timedelta(days=7)
"""How long a deleted chat can be restored."""

MOST_ROUNDS_BYTES = 64 << 20
"""The rounds of all chats, at most; beyond that those of the oldest replies are forgotten."""

_CHAT = "id, title, created, updated, renamed, system, leaf, sent_from"
_MESSAGE = "id, parent, role, content, created, status, pieces, facts"
_PREVIEW_CHARACTERS = 400
_MATCHES = 2000  # looked at; a chat shows the newest of its own
_UNSPACED = re.compile("[\u2e80-\U0003ffff]")  # scripts without spaces: words cannot be looked up


@dataclass(frozen=True)
class Removed:
    """Chats that were removed: their ids, and what the user wrote in them (messages, titles, system prompts)."""

    ids: tuple[str, ...]
    sent: frozenset[str]


class Chats:
    """The chats of one database. Every method is one statement or a few in the caller's transaction."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._sql = connection

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All of what happens inside, or nothing."""
        self._sql.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._sql.execute("COMMIT")
        except BaseException:
            if self._sql.in_transaction:
                self._sql.execute("ROLLBACK")
            raise

    # ---------------------------------------------------------------------------------------- writing

    def save(self, chat: ChatRecord) -> None:
        """Write a chat's own row, new or changed. It is there again if it was deleted meanwhile."""
        self._sql.execute(
            f"INSERT INTO chats ({_CHAT}) VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET"
            " title = excluded.title, updated = excluded.updated, renamed = excluded.renamed,"
            " system = excluded.system, leaf = excluded.leaf, sent_from = excluded.sent_from, deleted = NULL",
            (chat.id, _sound(chat.title), chat.created, chat.updated, chat.renamed, _sound(chat.system), chat.leaf,
             chat.sent_from),
        )  # fmt: skip

    def add(self, chat: str, message: StoredMessage, owner: str | None = None) -> None:
        """Write a new message; `owner` writes on it until it is done."""
        self._sql.execute(
            f"INSERT INTO messages (chat, owner, {_MESSAGE}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
            " ON CONFLICT DO NOTHING",
            (chat, owner, message.id, message.parent, message.role, _sound(message.content), message.created,
             message.status, _packed(message.pieces), _packed(message.facts)),
        )  # fmt: skip
        self._keep_rounds(chat, message)

    def update(self, chat: str, message: StoredMessage, owner: str | None = None) -> None:
        """Write a reply as far as it is, while `owner` writes it; or as it ended, and then it has no owner."""
        content, pieces, facts = _sound(message.content), _packed(message.pieces), _packed(message.facts)
        self._sql.execute(
            "UPDATE messages SET content = ?1, pieces = ?2, facts = ?3, status = ?4,"
            " owner = iif(?4 = 'streaming', coalesce(?7, owner), NULL) WHERE chat = ?5 AND id = ?6",
            (content, pieces, facts, message.status, chat, message.id, owner),
        )
        self._keep_rounds(chat, message)

    def rename(self, id: str, title: str) -> None:
        """Give a chat a name of the user's own."""
        self._sql.execute("UPDATE chats SET title = ?, renamed = 1 WHERE id = ?", (title, id))

    def delete(self, id: str, deleted: bool = True) -> None:
        """Mark a chat as deleted, or restore it."""
        self._sql.execute("UPDATE chats SET deleted = ? WHERE id = ?", (now() if deleted else None, id))

    def remove(self, *ids: str) -> Removed:
        """Forget chats for good. `erase` removes what is left of them in freed pages and in other files."""
        sent: set[str] = set()
        for id in ids:
            rows = self._sql.execute(
                "SELECT content FROM messages WHERE chat = ?1 AND role = 'user'"
                " UNION SELECT system FROM chats WHERE id = ?1 UNION SELECT title FROM chats WHERE id = ?1",
                (id,),
            )
            sent.update(_text(row[0]) for row in rows)
            self._sql.execute("DELETE FROM chats WHERE id = ?", (id,))
        if ids:  # deleting alone only marks their words in the index
            self._sql.execute("INSERT INTO words (words) VALUES ('rebuild')")
        return Removed(ids, frozenset(sent - {""}))

    def purge(self, before: datetime | None = None) -> Removed:
        """Forget chats for good that were deleted long enough ago."""
        before = before or datetime.now(UTC) - KEPT_DELETED
        written = before.isoformat(timespec="milliseconds")
        return self.remove(*(row[0] for row in self._sql.execute("SELECT id FROM chats WHERE deleted < ?", (written,))))

    def compact(self) -> None:
        """Rewrite the file without freed pages, and empty its log: both hold text of rows that are gone."""
        self._sql.execute("VACUUM")
        self._sql.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def forget_rounds(self, most_bytes: int = MOST_ROUNDS_BYTES) -> None:
        """Forget the rounds of the oldest replies where all rounds together take more than so many bytes."""
        self._sql.execute(
            "DELETE FROM rounds WHERE number IN (SELECT number FROM"
            " (SELECT number, sum(length(data)) OVER (ORDER BY number DESC) AS newer FROM rounds) WHERE newer > ?)",
            (most_bytes,),
        )

    def _keep_rounds(self, chat: str, message: StoredMessage) -> None:
        """Write the rounds of a reply that is complete; those of one that is not are not known yet."""
        if message.rounds:
            self._sql.execute(
                "INSERT INTO rounds (number, data) SELECT number, ? FROM messages WHERE chat = ? AND id = ?"
                " ON CONFLICT DO UPDATE SET data = excluded.data",
                (message.rounds, chat, message.id),
            )

    def keep_draft(self, id: str | None, text: str) -> None:
        """Keep the text that was in the prompt when a chat was left; an empty text removes what is kept."""
        if id is not None or not text:  # a new chat may have several
            self._sql.execute("DELETE FROM drafts WHERE chat IS ?", (id,))
        if text:
            known = "?1 IS NULL OR ?1 IN (SELECT id FROM chats)"
            self._sql.execute(f"INSERT INTO drafts SELECT ?1, ?2 WHERE {known}", (id, _sound(text)))

    def interrupt(self, owners: Iterable[str | None]) -> None:
        """Mark replies whose writers are gone."""
        for owner in owners:
            self._sql.execute(
                "UPDATE messages SET status = 'interrupted', owner = NULL WHERE status = 'streaming' AND owner IS ?",
                (owner,),
            )

    def owners(self) -> list[str | None]:
        rows = self._sql.execute("SELECT DISTINCT owner FROM messages WHERE status = 'streaming'")
        return [row[0] for row in rows]

    # ---------------------------------------------------------------------------------------- reading

    def chat(self, id: str) -> tuple[ChatRecord, list[StoredMessage]]:
        """A chat and all its messages, every one after the one it answers."""
        row = self._sql.execute(f"SELECT {_CHAT} FROM chats WHERE id = ?", (id,)).fetchone()
        if row is None:
            raise StoreError(f"there is no chat {id}")
        rows = self._sql.execute(
            f"SELECT {_MESSAGE}, data FROM messages LEFT JOIN rounds USING (number) WHERE chat = ? ORDER BY number",
            (id,),
        )
        return _chat(row), _tree(_message(row) for row in rows)

    def draft(self, id: str | None) -> str:
        """The text that was in the prompt when the chat, or new ones, were left; empty if there was none."""
        rows = self._sql.execute("SELECT text FROM drafts WHERE chat IS ? ORDER BY rowid", (id,))
        return "\n\n".join(_text(row[0]) for row in rows)

    def last(self) -> str:
        row = self._sql.execute("SELECT id FROM chats WHERE deleted IS NULL ORDER BY updated DESC LIMIT 1").fetchone()
        if row is None:
            raise StoreError("no chats have been kept yet")
        return str(row[0])

    def find(self, start: str) -> str:
        """The one chat whose id begins like this; raises UsageError where there is none, or more than one."""
        known = [
            row[0] for row in self._sql.execute("SELECT id FROM chats WHERE deleted IS NULL ORDER BY updated DESC")
        ]
        found = [id for id in known if id == start] or [id for id in known if start and id.startswith(start.lower())]
        if len(found) == 1:
            return str(found[0])
        if found:
            raise UsageError(f"several chats begin with {start!r}: {', '.join(found[:6])}")
        close = nearest(start, known)
        rest = close if "did you mean" in close else "; `specchat chats list` shows them"
        raise UsageError(f"no chat has an id that begins with {start!r}{rest}")

    def holds(self, id: str) -> bool:
        """Whether a chat of this id is there, deleted or not."""
        return self._sql.execute("SELECT 1 FROM chats WHERE id = ?", (id,)).fetchone() is not None

    def summaries(self, words: str = "", limit: int = 200) -> list[Summary]:
        """Chats, the newest first; with words, those with all of them in one message or in the title.

        Of these the chats come first whose title is just the words, then those whose title contains them.
        """
        where, order, places = "c.deleted IS NULL", "c.updated DESC", dict[str, str]()
        values: tuple[str, ...] = ()
        if words.strip():
            places = self._places(words)
            titled = " AND ".join("c.title LIKE ? ESCAPE '\\'" for _ in words.split())
            in_title = tuple(f"%{_literal(word)}%" for word in words.split())
            where += f" AND (c.id IN ({', '.join('?' * len(places))}) OR ({titled}))"
            order = f"c.title LIKE ? ESCAPE '\\' DESC, ({titled}) DESC, {order}"
            values = (*places, *in_title, _literal(" ".join(words.split())), *in_title)
        rows = self._sql.execute(
            "SELECT c.id, c.title, c.created, c.updated, (SELECT count(*) FROM messages WHERE chat = c.id),"
            f" (SELECT substr(content, 1, {_PREVIEW_CHARACTERS}) FROM messages WHERE chat = c.id AND id = c.leaf)"
            f" FROM chats c WHERE {where} ORDER BY {order} LIMIT ?",
            (*values, limit),
        )
        return [
            Summary(_text(id), _text(title), _text(created), _text(updated), count, places.get(id) or _text(last))
            for id, title, created, updated, count, last in rows
        ]

    def _places(self, words: str) -> dict[str, str]:
        """Chats that say the words, each with the text around the newest place where it does."""
        if _UNSPACED.search(words):
            query = " AND ".join("m.content LIKE ? ESCAPE '\\'" for _ in words.split())
            sql = f"SELECT m.chat, substr(m.content, 1, {_PREVIEW_CHARACTERS}) FROM messages m WHERE {query}"
            values = tuple(f"%{_literal(word)}%" for word in words.split())
        else:
            sql = (
                "SELECT m.chat, snippet(words, 0, '', '', '…', 24) FROM words JOIN messages m ON m.number = words.rowid"
                " WHERE words MATCH ?"
            )
            values = (" ".join(f'"{word}"*' for word in re.findall(r"\w+", words)),)
        if values == ("",):
            return {}
        found: dict[str, str] = {}
        for chat, place in self._sql.execute(f"{sql} ORDER BY m.number DESC LIMIT {_MATCHES}", values):
            found.setdefault(chat, _text(place))
        return dict(list(found.items())[:500])


def _sound(text: str) -> str:
    """Half of a surrogate pair can be pasted but not stored."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _literal(text: str) -> str:
    return re.sub(r"([\\%_])", r"\\\1", text)


_T = TypeVar("_T")
_STATUSES = get_args(Status)


def _packed(value: Any) -> str | None:
    return msgspec.json.encode(value).decode() if value else None


def _chat(row: tuple[Any, ...]) -> ChatRecord:
    id, title, created, updated, renamed, system, leaf, sent_from = row
    return ChatRecord(
        _text(id), _text(title), _text(created), _text(updated), bool(renamed), _text(system), leaf, sent_from
    )


_pieces = msgspec.json.Decoder(list[int])
_facts = msgspec.json.Decoder(Facts)


def _message(row: tuple[Any, ...]) -> StoredMessage:
    id, parent, role, content, created, status, pieces, facts, rounds = row
    known: Status = status if status in _STATUSES else "done"
    return StoredMessage(
        _text(id), parent, "user" if role == "user" else "assistant", _text(content), _text(created), known,
        _unpacked(_pieces, pieces) or [], _unpacked(_facts, facts), rounds if isinstance(rounds, bytes) else b"",
    )  # fmt: skip


def _tree(messages: Iterable[StoredMessage]) -> list[StoredMessage]:
    """The messages, every one after the one it answers; where that one is lost it begins a branch of its own."""
    seen: dict[str, StoredMessage] = {}
    for message in messages:
        lost = message.parent is not None and message.parent not in seen
        seen.setdefault(message.id, msgspec.structs.replace(message, parent=None) if lost else message)
    return list(seen.values())


def _text(value: Any) -> str:
    """A column that holds text; the file may be damaged, and one row must not take the others with it."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return "" if value is None else str(value)


def _unpacked(decoder: msgspec.json.Decoder[_T], text: str | None) -> _T | None:
    """What `_packed` wrote. Figures that cannot be read are left out: the text is what counts."""
    try:
        return decoder.decode(text) if text else None
    except (*UNREADABLE, TypeError):
        return None
