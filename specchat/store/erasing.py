"""Erases what removed chats leave behind: in freed pages, in copies of older versions, among the sent prompts."""

from __future__ import annotations

import mmap
from pathlib import Path

from specchat.config.regular_file import open_regular
from specchat.errors import StoreError
from specchat.store.chats import Chats, Removed
from specchat.store.database import open_copy, saying
from specchat.store.prompt_history import FILE, History


def erase(path: Path, chats: Chats, removed: Removed) -> list[str]:
    """Erase the words of chats that were removed from the file at `path`, from it and from the files beside it.

    Returns:
        A line for every file that may hold them still. Damaged files are never changed.
    """
    if not removed.ids:
        return []
    left: list[str] = []
    try:
        with saying(path):
            chats.compact()
    except StoreError as error:
        left.append(f"{error}; it may hold their words until the next removal")
    for copy in sorted(path.parent.glob(f"{path.name}.v*.bak")):
        try:
            with open_copy(copy) as connection:
                older = Chats(connection)
                with older.transaction():
                    older.remove(*filter(older.holds, removed.ids))
                older.compact()
        except StoreError as error:
            left.append(f"{error}; it may hold them still")
    for damaged in sorted(path.parent.glob(f"{path.name}.damaged-*")):
        if _names(damaged, removed.ids):
            left.append(f"{damaged} holds them still: delete it if no other chat in it is to be saved")
    sent = History(path.with_name(FILE))
    sent.forget(removed.sent)
    return [*left, *([f"{path.with_name(FILE)}: {sent.problem}"] if sent.problem else [])]


def _names(file: Path, ids: tuple[str, ...]) -> bool:
    """Whether one of the ids stands in a file; one that cannot be read counts as naming them."""
    try:
        with open_regular(file) as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return any(data.find(id.encode()) >= 0 for id in ids)
    except ValueError:  # an empty file
        return False
    except OSError:
        return True
