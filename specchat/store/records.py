"""Records of a chat as it is kept: its messages as a tree, and how each reply was made."""

from __future__ import annotations

import re
import secrets
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

Status = Literal["done", "streaming", "interrupted"]

LARGEST_ROUNDS_BYTES = 256 << 10
"""The rounds of one reply, at most: about a thousand rounds of ten guesses."""

_LETTERS = "23456789abcdefghjkmnpqrstuvwxyz"  # no letter that looks like another
_TITLE_CHARACTERS = 60
_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{3}Z")


_Token = Annotated[int, Meta(ge=0, le=2**24 - 1)]
_Length = Annotated[int, Meta(ge=0, le=2**16)]


class SettingsChange(Struct, frozen=True):
    """Settings that changed while a reply was being written, with their values from then on.

    `piece` is the index of the first of the message's pieces that was written with them; `loss` as in `Facts`, from
    that piece on.
    """

    piece: int
    settings: dict[str, Any]
    loss: dict[str, Any] | None = None


class Facts(Struct, frozen=True):
    """How one reply was made. The dictionaries hold fields of the engine's events, unchanged.

    `settings` are those it began with. `loss` is about the whole reply: lossy once any part of it is.
    """

    pair: str = ""
    seed: int | None = None
    stop: str | None = None
    settings: dict[str, Any] = {}
    loss: dict[str, Any] | None = None
    stats: dict[str, Any] | None = None
    thought_s: float | None = None  # spent on what it thought before it answered
    changes: list[SettingsChange] = []  # of the settings, while it was written
    constraint: dict[str, Any] | None = None  # what it was held to
    begun: list[tuple[_Token, _Length]] = []  # tokens that were taken from another branch, and the characters of each


class StoredMessage(Struct, frozen=True):
    """One message and what it answers. `pieces` are the lengths of a reply's tokens in characters of `content`,
    in order: above 0 where the token was drafted, below 0 where the target wrote it itself. `rounds` are those of a
    reply as the engine's protocol packs them; they are checked when they are unpacked.
    """

    id: str
    parent: str | None
    role: Literal["user", "assistant"]
    content: str
    created: str
    status: Status = "done"
    pieces: list[int] = []
    facts: Facts | None = None
    rounds: bytes = b""


class ChatRecord(Struct, frozen=True):
    """A chat without its messages. `leaf` ends the branch that was looked at last.

    Messages before `sent_from` are no longer sent on, because there was no room for them in the context.
    """

    id: str
    title: str
    created: str
    updated: str
    renamed: bool = False
    system: str = ""
    leaf: str | None = None
    sent_from: str | None = None


class Summary(Struct, frozen=True):
    """A chat as a list shows it. `preview` is its last message, or the place that was searched for."""

    id: str
    title: str
    created: str
    updated: str
    messages: int
    preview: str


def new_id() -> str:
    """A random id, short enough to be typed."""
    return "".join(secrets.choice(_LETTERS) for _ in range(10))


def now() -> str:
    """The time as it is written down: UTC, sortable, `2026-01-31T12:00:00.000Z`."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def is_time(text: str) -> bool:
    """Whether this is a time as `now` writes it, in years that can be told in every time zone."""
    if not _TIME.fullmatch(text):
        return False
    try:
        return 1970 <= datetime.fromisoformat(text).year <= 9998
    except ValueError:  # the 31st of February
        return False


def title_of(text: str) -> str:
    """A chat's title until the user names it: its first words."""
    words = " ".join(text[: 4 * _TITLE_CHARACTERS].split())
    return words if len(words) <= _TITLE_CHARACTERS else words[: _TITLE_CHARACTERS - 1].rstrip() + "…"
