"""Small chats to put into a store."""

from __future__ import annotations

from specchat.store.chats import Chats
from specchat.store.records import ChatRecord, Facts, StoredMessage

WHEN = "2026-01-31T12:00:00.000Z"
FACTS = Facts("smol", 2**53, "end", {"width": 4, "stop": []}, {"lossless": True, "reason": "why"}, {"tokens": 3})


def chat(id: str = "first", title: str = "hello", updated: str = WHEN, **more: object) -> ChatRecord:
    return ChatRecord(id, title, WHEN, updated, **more)  # type: ignore[arg-type]


def said(id: str, text: str, parent: str | None = None) -> StoredMessage:
    return StoredMessage(id, parent, "user", text, WHEN)


def answered(id: str, text: str, parent: str | None, status: str = "done") -> StoredMessage:
    return StoredMessage(id, parent, "assistant", text, WHEN, status, [len(text)], FACTS)  # type: ignore[arg-type]


def talk(chats: Chats, id: str = "first", *texts: str, title: str = "hello", updated: str = WHEN) -> None:
    """A chat of these messages, by turns."""
    with chats.transaction():
        chats.save(chat(id, title, updated, leaf=f"m{len(texts) - 1}" if texts else None))
        for index, text in enumerate(texts):
            parent = f"m{index - 1}" if index else None
            chats.add(id, answered(f"m{index}", text, parent) if index % 2 else said(f"m{index}", text, parent))
