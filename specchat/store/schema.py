"""The tables, and the steps that lead from any older version of them to this one."""

from __future__ import annotations

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
