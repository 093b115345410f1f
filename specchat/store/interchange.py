"""A chat as one JSON file: everything that is kept of it, to be read back here or anywhere."""

from __future__ import annotations

import re
from typing import Any, Literal

import msgspec
from msgspec import Struct

from specchat.errors import StoreError, UsageError
from specchat.store.chats import Chats
from specchat.store.records import Chat, Message, new_id

FORMAT: Literal["specchat chat"] = "specchat chat"
VERSION: Literal[1] = 1

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


class Exported(Struct, frozen=True):
    """The file."""

    format: Literal["specchat chat"]
    version: Literal[1]
    chat: Chat
    messages: list[Message]


def write_json(chat: Chat, messages: list[Message]) -> str:
    """The chat as text of the file."""
    data = msgspec.json.encode(Exported(FORMAT, VERSION, chat, messages))
    return msgspec.json.format(data, indent=1).decode() + "\n"


def read_json(data: bytes, name: str) -> Exported:
    """The chat in a file called `name`; raises UsageError where the file is none that `write_json` wrote."""
    try:
        raw = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"{name}: this is no JSON: {error}") from None
    if not isinstance(raw, dict) or raw.get("format") != FORMAT:
        raise UsageError(f"{name}: this is no chat that specchat exported: format is not {FORMAT!r}")
    if raw.get("version") != VERSION:
        raise UsageError(f"{name}: version = {raw.get('version')!r}, and this specchat reads version {VERSION}")
    exported = _converted(raw, name)
    _refuse_broken_tree(exported, name)
    return exported


def take_in(chats: Chats, exported: Exported) -> str:
    """Write a chat that was read; where its id is taken it comes in as a copy. Returns the id it has now."""
    chat = exported.chat
    try:
        with chats.transaction():
            if chats.holds(chat.id):
                chat = msgspec.structs.replace(chat, id=new_id())
            chats.save(chat)
            for message in exported.messages:
                chats.add(chat.id, _settled(message))
    except UnicodeEncodeError as error:  # half of a surrogate pair in an id
        raise StoreError(f"the chat cannot be written down: {error}") from None
    return chat.id


def _converted(raw: dict[str, Any], name: str) -> Exported:
    try:
        return msgspec.convert(raw, Exported)
    except msgspec.ValidationError as error:
        raise UsageError(f"{name}: {error}".replace("`", "")) from None


def _refuse_broken_tree(exported: Exported, name: str) -> None:
    seen: set[str] = set()
    for index, message in enumerate(exported.messages):
        where = f"{name}: messages[{index}]"
        if not _ID.fullmatch(message.id) or message.id in seen:
            raise UsageError(f"{where}: id = {message.id!r} is no id, or not the first of its name")
        if message.parent is not None and message.parent not in seen:
            raise UsageError(f"{where}: parent = {message.parent!r} is no message before it")
        seen.add(message.id)
    if not _ID.fullmatch(exported.chat.id):
        raise UsageError(f"{name}: chat: id = {exported.chat.id!r} is no id")
    if exported.chat.leaf is not None and exported.chat.leaf not in seen:
        raise UsageError(f"{name}: chat: leaf = {exported.chat.leaf!r} is no message of it")


def _settled(message: Message) -> Message:
    """Nobody goes on writing a reply that was copied."""
    return msgspec.structs.replace(message, status="interrupted") if message.status == "streaming" else message
