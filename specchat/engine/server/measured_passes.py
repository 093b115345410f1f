"""Times of passes, kept in a small file per pair, device, precision and threads until they are old or no longer true.

Needs no torch: the app looks at them too.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

import msgspec

from specchat import __version__
from specchat.config import state_dir
from specchat.config.kept_files import read_json, write_whole
from specchat.core.costs import Costs

_MOST = 200

OLD = timedelta(days=30)
"""After so long passes are timed again: systems, drivers and cooling change."""


class MeasuredPasses(msgspec.Struct, frozen=True):
    """Passes by rows, and by what and when they were timed."""

    verify: tuple[tuple[int, float], ...]
    draft: tuple[tuple[int, float], ...]
    processor: str
    version: str
    measured: Annotated[datetime, msgspec.Meta(tz=True)]
    node_s: float | None = None

    @property
    def costs(self) -> Costs:
        return Costs(self.verify, self.draft, self.node_s)

    def holds(self, processor: str) -> bool:
        """Whether it is of this processor and this version, and can be true."""
        return (self.processor, self.version) == (processor, __version__) and self.costs.plausible

    @property
    def old(self) -> bool:
        """Whether to measure again when there is time. A clock that was set back makes a measurement old."""
        return not timedelta(0) <= datetime.now(UTC) - self.measured <= OLD


@dataclass(frozen=True)
class ProfileStore:
    """A small JSON file. Whatever cannot be read counts as not measured."""

    file: Path

    def get(self, key: str, processor: str) -> MeasuredPasses | None:
        """The measurement under this key, by this processor and this version, if it can be true."""
        entry = self._all().get(key)
        return entry if entry is not None and entry.holds(processor) else None

    def put(self, key: str, processor: str, costs: Costs) -> MeasuredPasses:
        """Remember a measurement, if it can be written."""
        entry = MeasuredPasses(
            costs.verify, costs.draft, processor, __version__, datetime.now(UTC).replace(microsecond=0), costs.node_s
        )
        others = [one for one in self._all().items() if one[0] != key]
        kept = dict([*others, (key, entry)][-_MOST:])
        with suppress(OSError):
            write_whole(self.file, msgspec.json.format(msgspec.json.encode(kept)))
        return entry

    def _all(self) -> dict[str, MeasuredPasses]:
        return read_json(self.file, dict[str, MeasuredPasses]) or {}

    def plain_passes_s(self, device: str, processor: str) -> dict[str, float]:
        """Target → seconds of a pass of one row with all layers in memory, as they were measured last."""
        timed: dict[str, float] = {}
        for key, entry in self._all().items():
            models, *about = key.split("|")
            if len(about) == 4 and about[0] == device and entry.holds(processor):
                timed[models.split("+")[0]] = entry.costs.verify_s(1)
        return timed


def kept_profiles() -> ProfileStore:
    """The measurements of this user's machine."""
    return ProfileStore(state_dir() / "profiles.json")
