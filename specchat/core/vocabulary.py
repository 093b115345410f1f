"""A model's table of tokens: enough to go over from one model's tokens to another's."""

from __future__ import annotations

import hashlib
from typing import Protocol


class TokenTable(Protocol):
    """Tokens and the bytes they stand for."""

    eos_ids: frozenset[int]
    """Tokens that end a reply."""

    @property
    def size(self) -> int:
        """How many tokens there are; numbers from 0."""

    def token_bytes(self, token: int) -> bytes:
        """The bytes a token adds to the text; empty for special tokens."""

    def token_spelling(self, token: int) -> bytes:
        """The bytes a token is written with, special tokens by name: what `encode` reads back."""

    def encode(self, text: str) -> list[int]:
        """A text as tokens, nothing added before or behind it."""


def table_sha256(table: TokenTable) -> str:
    """A checksum that two tables share only if every token has the same number and stands for the same bytes."""
    pieces = (table.token_bytes(token) for token in range(table.size))
    said = b"".join(len(piece).to_bytes(4, "little") + piece for piece in pieces)
    return hashlib.sha256(said).hexdigest()
