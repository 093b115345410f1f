"""A message of a chat, as commands and events carry it."""

from __future__ import annotations

from msgspec import Struct

from specchat.engine.protocol.bounds import Role


class Message(Struct, frozen=True):
    """One turn of a chat. `role` is `system`, `user` or `assistant`."""

    role: Role
    content: str
