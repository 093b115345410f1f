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

    def plain_pass_s(self, target: str, device: str, processor: str) -> float | None:
        """Seconds of a pass of one row through this model, as they were measured last; None where they were not."""
        for key, entry in reversed(self._all().items()):
            models, _, rest = key.partition("|")
            if models.split("+")[0] == target and rest.startswith(f"{device}|") and entry.holds(processor):
                return entry.costs.verify_s(1)
        return None


def kept_profiles() -> ProfileStore:
    """The measurements of this user's machine."""
    return ProfileStore(state_dir() / "profiles.json")
