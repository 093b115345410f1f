"""Keeps what passes cost, for planning: per pair, device, precision and threads, until it is old or no longer true."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

import msgspec

from specchat import __version__
from specchat.config.kept_files import read_json, write_whole
from specchat.core.costs import Costs

_MOST = 200

OLD = timedelta(days=30)
"""After so long passes are timed again: systems, drivers and cooling change."""


class Entry(msgspec.Struct, frozen=True):
    """Passes by rows, and by what and when they were timed."""

    verify: tuple[tuple[int, float], ...]
    draft: tuple[tuple[int, float], ...]
    processor: str
    version: str
    measured: Annotated[datetime, msgspec.Meta(tz=True)]

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
        """Remember a measurement, if it can be written."""
        entry = Entry(costs.verify, costs.draft, processor, __version__, datetime.now(UTC).replace(microsecond=0))
        others = [one for one in self._all().items() if one[0] != key]
        kept = dict([*others, (key, entry)][-_MOST:])
        with suppress(OSError):
            write_whole(self.file, msgspec.json.format(msgspec.json.encode(kept)))
        return entry

    def _all(self) -> dict[str, Entry]:
        return read_json(self.file, dict[str, Entry]) or {}
