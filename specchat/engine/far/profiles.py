"""Keeps what passes cost, for planning: per pair, device, precision and threads, until it is old or no longer true."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec

from specchat import __version__
from specchat.config import private_dir
from specchat.core.costs import Costs

OLD = timedelta(days=30)
"""After so long passes are timed again: systems, drivers and cooling change."""


class Entry(msgspec.Struct, frozen=True):
    """Passes by rows, and by what and when they were timed."""

    verify: tuple[tuple[int, float], ...]
    draft: tuple[tuple[int, float], ...]
    processor: str
    version: str
    measured: datetime

    @property
    def costs(self) -> Costs:
        return Costs(self.verify, self.draft)

    @property
    def old(self) -> bool:
        """It is still planned with, and measured again when there is time. A clock that was set back makes it old."""
        return not timedelta(0) <= datetime.now(UTC) - self.measured <= OLD


@dataclass(frozen=True)
class ProfileStore:
    """A small JSON file. Whatever cannot be read counts as not measured."""

    file: Path

    def get(self, key: str, processor: str) -> Entry | None:
        """What was measured under this key, by this processor and this version, if it can be true."""
        entry = self._all().get(key)
        if entry is None or (entry.processor, entry.version) != (processor, __version__) or not entry.costs.plausible:
            return None
        return entry

    def put(self, key: str, processor: str, costs: Costs) -> Entry:
        """Remember a measurement; where the disk does not let us, it just is not remembered."""
        entry = Entry(costs.verify, costs.draft, processor, __version__, datetime.now(UTC).replace(microsecond=0))
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
