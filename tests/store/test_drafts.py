"""What was not sent in a chat without messages, which is not stored itself."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from specchat.store import database
from specchat.store.chats import Chats
from specchat.store.database import open_to_write


def test_drafts_of_new_chats_are_kept_beside_each_other_and_leave_together(path: Path) -> None:
    path.parent.mkdir()
    before = sqlite3.connect(path)
    before.executescript("".join(database.MIGRATIONS[:5]) + "PRAGMA user_version = 5;")
    before.execute("INSERT INTO chats VALUES ('a', 'hi', 1, '', '2026', '2027', NULL, NULL, NULL)")
    before.execute("INSERT INTO drafts VALUES ('a', 'of a chat')")
    before.commit()
    before.close()
    chats = Chats(open_to_write(path)[0])
    assert (chats.draft("a"), chats.draft(None)) == ("of a chat", "")
    chats.keep_draft(None, "one \ud800")
    chats.keep_draft(None, "two")
    assert (chats.draft("a"), chats.draft(None)) == ("of a chat", "one ?\n\ntwo")
    chats.keep_draft(None, "")
    assert (chats.draft("a"), chats.draft(None)) == ("of a chat", "")
    chats.remove("a")
    assert chats.draft("a") == ""
