"""A chat as one JSON file: everything that is kept of it, to be read back here or anywhere."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from specchat.config.file_reading import UNREADABLE, open_file_or_pipe
from specchat.errors import UsageError, cut, os_errors_as, short
from specchat.store.chats import Chats
from specchat.store.records import LARGEST_ROUNDS_BYTES, ChatRecord, StoredMessage, is_time, new_id, now

FORMAT: Literal["specchat chat"] = "specchat chat"
VERSION: Literal[1] = 1

_LARGEST_BYTES = 64 << 20
_MOST_MESSAGES = 100_000
_LONGEST_TITLE = 10_000
"""Far beyond any real chat; a forged file must take neither memory nor time."""

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


class Exported(Struct, frozen=True):
    format: Literal["specchat chat"]
    version: Literal[1]
    chat: ChatRecord
    messages: list[StoredMessage]


def write_json(chat: ChatRecord, messages: Sequence[StoredMessage]) -> str:
    data = msgspec.json.encode(Exported(FORMAT, VERSION, chat, list(messages)))
    return msgspec.json.format(data, indent=1).decode() + "\n"


def read_json(data: bytes, name: str) -> Exported:
    """The chat in a file called `name`; raises UsageError if `write_json` did not write the file."""
    try:
        raw = msgspec.json.decode(data)
    except UNREADABLE as error:
        raise UsageError(f"{name}: this is not JSON: {cut(str(error))}") from None
    if not isinstance(raw, dict) or raw.get("format") != FORMAT:
        raise UsageError(f"{name}: this is not a chat that specchat exported: format is not {FORMAT!r}")
    if raw.get("version") != VERSION:
        raise UsageError(f"{name}: version = {short(raw.get('version'))}, and this specchat reads version {VERSION}")
    try:
        exported = msgspec.convert(raw, Exported)
    except msgspec.ValidationError as error:
        raise UsageError(f"{name}: {cut(str(error))}".replace("`", "")) from None
    _refuse_broken_tree(exported, name)
    try:
        msgspec.json.encode(exported)
    except (UnicodeEncodeError, RecursionError, OverflowError) as error:
        raise UsageError(f"{name}: it cannot be written again: {cut(str(error))}") from None
    return exported


def read_file(file: Path) -> Exported:
    """The chat in a file.

    Raises:
        UsageError: the file cannot be read, is larger than any chat, or was not written by `write_json`.
    """
    with os_errors_as(UsageError, str(file)), open_file_or_pipe(file) as handle:
        data = handle.read(_LARGEST_BYTES + 1)
    if len(data) > _LARGEST_BYTES:
        raise UsageError(f"{file}: it is larger than {_LARGEST_BYTES >> 20} MiB")
    return read_json(data, str(file))


def take_in(chats: Chats, exported: Exported) -> str:
    """Write a chat that was read, in the caller's transaction; where its id is taken it comes in as a copy.

    Returns:
        The id it has now.
    """
    chat = exported.chat
    if chats.holds(chat.id):
        chat = msgspec.structs.replace(chat, id=new_id())
    chats.save(chat)
    for message in exported.messages:
        if message.status == "streaming":  # it was being written when it was copied
            message = msgspec.structs.replace(message, status="interrupted")
        chats.add(chat.id, message)
    return chat.id


def _refuse_broken_tree(exported: Exported, name: str) -> None:
    if len(exported.messages) > _MOST_MESSAGES:
        raise UsageError(f"{name}: it holds more than {_MOST_MESSAGES} messages")
    seen: set[str] = set()
    for index, message in enumerate(exported.messages):
        where = f"{name}: messages[{index}]"
        if not _ID.fullmatch(message.id) or message.id in seen:
            raise UsageError(f"{where}: id = {short(message.id)} is not an id, or is used twice")
        if message.parent is not None and message.parent not in seen:
            raise UsageError(f"{where}: parent = {short(message.parent)} is not an earlier message")
        if len(message.rounds) > LARGEST_ROUNDS_BYTES:
            raise UsageError(f"{where}: rounds are longer than {LARGEST_ROUNDS_BYTES >> 10} KiB")
        _refuse_no_time(where, "created", message.created)
        seen.add(message.id)
    if not _ID.fullmatch(exported.chat.id):
        raise UsageError(f"{name}: chat: id = {short(exported.chat.id)} is not an id")
    for key in ("leaf", "sent_from"):
        if (named := getattr(exported.chat, key)) is not None and named not in seen:
            raise UsageError(f"{name}: chat: {key} = {short(named)} is not a message of it")
    for key in ("created", "updated"):
        _refuse_no_time(f"{name}: chat", key, getattr(exported.chat, key))
    if len(exported.chat.title) > _LONGEST_TITLE:
        raise UsageError(f"{name}: chat: title is longer than {_LONGEST_TITLE} characters")


def _refuse_no_time(where: str, key: str, written: str) -> None:
    """Chats are sorted by these texts, so that only the one form that is written here can be taken in."""
    if not is_time(written):
        raise UsageError(f"{where}: {key} = {short(written)} is not a time, such as {now()}")
