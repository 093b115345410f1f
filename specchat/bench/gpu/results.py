"""The results file, written after every part, so that an early end loses nothing measured before."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from specchat.bench.gpu.part_result import Outcome
from specchat.config.kept_files import replacing
from specchat.errors import UsageError


@dataclass(frozen=True)
class Done:
    """A part that was measured, when, and how long that took."""

    outcome: Outcome
    seconds: float
    made: str


@dataclass
class Results:
    """What one file holds. Parts measured on another device, at another size or with other weights do not count.

    Args:
        setup: what the parts were measured with, as `Setup.describe` says.
        circumstances: of the run that wrote last.
    """

    file: Path
    setup: dict[str, Any]
    circumstances: dict[str, Any]
    parts: dict[str, Done] = field(default_factory=dict)

    def load(self) -> None:
        """Take over what an earlier run with the same setup has measured.

        Raises:
            UsageError: the file is not one of these.
        """
        if not self.file.is_file():
            return
        try:
            kept = json.loads(self.file.read_text(encoding="utf-8"))
            if kept["setup"] == self.setup:
                self.parts = {
                    name: Done(Outcome.of(part["outcome"]), part["seconds"], part["made"])
                    for name, part in kept["parts"].items()
                }
        except (AttributeError, LookupError, TypeError, ValueError):
            raise UsageError(
                f"{self.file} holds no results of this program; remove it, or choose another --out"
            ) from None

    def add(self, name: str, outcome: Outcome, seconds: float) -> None:
        """Keep what a part found, on disk before this returns."""
        self.parts[name] = Done(outcome, seconds, datetime.now(UTC).isoformat(timespec="seconds"))
        parts = {
            name: {"made": done.made, "seconds": done.seconds, "outcome": done.outcome.record()}
            for name, done in self.parts.items()
        }
        written = {"setup": self.setup, "circumstances": self.circumstances, "parts": parts}
        with replacing(self.file, mode=0o644) as draft:
            draft.write_text(json.dumps(written, indent=1), encoding="utf-8")

    def figures(self, name: str) -> dict[str, Any] | None:
        """What another part measured, if it has run."""
        return self.parts[name].outcome.figures if name in self.parts else None
