"""Keeps what was measured per pair, device, precision and threads, so that it is measured once."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from specchat.config import private_dir
from specchat.core.costs import Costs
from specchat.decoding.plain import PlainCurve


class Entry(msgspec.Struct, frozen=True):
    """Plain speed by context, passes by rows, and when they were measured."""

    points: tuple[tuple[int, float], ...]
    verify: tuple[tuple[int, float], ...]
    draft: tuple[tuple[int, float], ...]
    measured: str

    @property
    def curve(self) -> PlainCurve:
        return PlainCurve(self.points)

    @property
    def costs(self) -> Costs:
        return Costs(self.verify, self.draft)


@dataclass(frozen=True)
class ProfileStore:
    """A small JSON file. Whatever cannot be read counts as not measured."""

    file: Path

    def get(self, key: str) -> Entry | None:
        """What was measured under this key."""
        return self._all().get(key)

    def put(self, key: str, curve: PlainCurve, costs: Costs) -> Entry:
        """Remember a measurement; where the disk does not let us, it just is not remembered."""
        entry = Entry(curve.points, costs.verify, costs.draft, datetime.now(UTC).isoformat(timespec="seconds"))
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
