"""Keeps measured plain speeds per pair, device, precision and threads, so that they are measured once."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from specchat.config import private_dir
from specchat.decoding.plain import PlainCurve


class Entry(msgspec.Struct, frozen=True):
    """One measured curve, and when it was measured."""

    points: tuple[tuple[int, float], ...]
    measured: str


@dataclass(frozen=True)
class PlainStore:
    """A small JSON file. Whatever cannot be read counts as not measured."""

    file: Path

    def get(self, key: str) -> Entry | None:
        """The curve measured for this key."""
        return self._all().get(key)

    def put(self, key: str, curve: PlainCurve) -> Entry:
        """Remember a curve; where the disk does not let us, it just is not remembered."""
        entry = Entry(curve.points, datetime.now(UTC).isoformat(timespec="seconds"))
        data = msgspec.json.format(msgspec.json.encode(self._all() | {key: entry}))
        try:
            private_dir(self.file.parent)
            with tempfile.NamedTemporaryFile(dir=self.file.parent, delete=False) as unfinished:
                unfinished.write(data)
            os.replace(unfinished.name, self.file)
        except OSError:
            return entry
        return entry

    def _all(self) -> dict[str, Entry]:
        try:
            return msgspec.json.decode(self.file.read_bytes(), type=dict[str, Entry])
        except (OSError, msgspec.DecodeError):
            return {}
