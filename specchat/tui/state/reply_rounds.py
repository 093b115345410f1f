"""The rounds of one reply: a list while they are shown or grow, a few packed bytes otherwise."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from specchat.engine.protocol.events import RoundDone
from specchat.engine.protocol.packed_rounds import pack_rounds, path_only, unpack_rounds
from specchat.store.records import LARGEST_ROUNDS_BYTES

WHOLE_TREES = 1024
"""How many of the last rounds of a reply keep their whole tree; in a list each takes about ten kilobytes."""


@dataclass(frozen=True)
class _Packed:
    """Packed rounds, and of how many rounds in the list they are."""

    data: bytes = b""
    count: int = 0


class ReplyRounds:
    """A reply's rounds, in order. As a list they take a hundred times the memory of the packed bytes.

    Args:
        data: packed rounds that were stored with the reply. Where they cannot be read there are none.
    """

    def __init__(self, data: bytes = b"") -> None:
        self._packed = _Packed(data)
        self._list: list[RoundDone] | None = None if data else []

    def __bool__(self) -> bool:
        return bool(self._packed.data or self._list)

    @property
    def list(self) -> list[RoundDone]:
        """The rounds."""
        if self._list is None:
            data = self._packed.data
            try:
                self._list = unpack_rounds(data)
            except msgspec.DecodeError:
                self._list = []
            self._packed = _Packed(data, len(self._list))
        return self._list

    def append(self, round: RoundDone) -> None:
        """Add a round. Those far back keep only their accepted paths: a reply may be of any length."""
        rounds = self.list
        rounds.append(round)
        if (far := len(rounds) - 1 - WHOLE_TREES) >= 0:
            rounds[far] = path_only(rounds[far])

    def pack(self) -> bytes:
        """The rounds as they are stored. May be called from any thread."""
        rounds, packed = self._list, self._packed
        if rounds is not None and len(rounds) != packed.count:
            rounds = rounds[:]
            self._packed = packed = _Packed(pack_rounds(rounds, LARGEST_ROUNDS_BYTES), len(rounds))
        return packed.data

    def drop_list(self) -> None:
        """Keep only the packed bytes."""
        self.pack()
        if self._packed.data:
            self._list = None
