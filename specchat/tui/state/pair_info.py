"""What the app knows about a pair before it is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class PairInfo:
    """One target and what drafts for it, whether its weights are on this machine, and whether they would run on it.

    `draft` names the draft models that its settings use. `unused` are those that they do not, in words: these are
    neither fetched nor held, and no size counts them.

    `found` is one that another program keeps here and that was not added yet. Sizes are None where they are unknown.
    `refusal` says why the pair cannot work and `trouble` what that is about; `remark` says why it may be slow.
    """

    name: str
    target: str
    draft: str | None = None
    state: Literal["ready", "unverified", "partial", "missing", "elsewhere", "found"] = "ready"
    download_bytes: int | None = 0
    summary: str = ""
    notes: str = ""
    disk_bytes: int = 0
    needed_bytes: int | None = None
    free_bytes: int | None = None
    trouble: Literal["", "files", "shape", "tokens"] = ""
    refusal: str = ""
    remark: str = ""
    trained: tuple[str, ...] = ()  # drafters trained for the target, in words
    unused: str = ""
    yours: bool = False  # defined in the user's own models.toml

    def fits_in_memory(self, held_bytes: int = 0) -> bool:
        """Whether it is known to fit."""
        known = self.needed_bytes is not None and self.free_bytes is not None
        return bool(self.needed_bytes) and known and not self.short_of_memory(held_bytes)

    def short_of_memory(self, held_bytes: int = 0) -> bool:
        """Whether it would not fit, even when the pair in use, which holds so much, has gone."""
        if self.needed_bytes is None or self.free_bytes is None:
            return False
        return self.needed_bytes > self.free_bytes + held_bytes
