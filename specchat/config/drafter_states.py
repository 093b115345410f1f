"""States that drafters learnt from the user's chats, as files: one for each target and drafter, bounded and private."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from specchat.config.directories import state_dir
from specchat.config.kept_files import replacing
from specchat.config.toml_file import NAME
from specchat.errors import StoreError, UsageError, nearest, os_errors_as, short

MOST_BYTES = 256 << 20
"""A drafter may keep so much for one target."""

_FILE = "state.bin"
_HEADER = b"specchat drafter state 1 "
_HEADER_BYTES = len(_HEADER) + 64 + 1


@dataclass(frozen=True)
class DrafterStateFile:
    """The file of one drafter and one target. It holds a checksum, so that damage is noticed before it is read."""

    file: Path

    @classmethod
    def of(cls, target_sha256: str, name: str) -> DrafterStateFile:
        """The file for the drafter with this name and the target whose weights have this checksum."""
        assert NAME.fullmatch(name), "drafters have plain names"
        return cls(_states_dir() / target_sha256 / name / _FILE)

    @property
    def there(self) -> bool:
        return self.file.is_file()

    def read(self) -> bytes:
        """The state that was written last; StoreError if it cannot be read, or is not what was written."""
        with os_errors_as(StoreError, f"{self.file} cannot be read"), self.file.open("rb") as opened:
            data = opened.read(MOST_BYTES + _HEADER_BYTES + 1)
        state = data[_HEADER_BYTES:]
        if data[:_HEADER_BYTES] != _header(state) or len(state) > MOST_BYTES:
            raise StoreError(f"{self.file} is damaged")
        return state

    def write(self, state: bytes) -> None:
        """Replace the state in one step; StoreError if it is too large, or the disk does not take it."""
        if len(state) > MOST_BYTES:
            raise StoreError(f"{len(state) >> 20} MiB are more than the {MOST_BYTES >> 20} MiB that a drafter may keep")
        with os_errors_as(StoreError, f"{self.file} cannot be written"), replacing(self.file) as draft:
            draft.write_bytes(_header(state) + state)


def kept_states() -> dict[str, int]:
    """Drafters that have learnt something → bytes of it, over all targets."""
    sizes: dict[str, int] = {}
    for file in sorted(_states_dir().glob(f"*/*/{_FILE}")):
        sizes[file.parent.name] = sizes.get(file.parent.name, 0) + file.stat().st_size
    return sizes


def erase_state(name: str) -> int:
    """Forget what this drafter has learnt, for every target; how many bytes that freed.

    Raises:
        UsageError: it has learnt nothing.
        StoreError: a file cannot be removed.
    """
    freed = kept_states().get(name)
    if freed is None:
        raise UsageError(f"no drafter called {short(name)} has learnt anything{nearest(name, kept_states())}")
    for file in _states_dir().glob(f"*/*/{_FILE}"):
        if file.parent.name == name:
            with os_errors_as(StoreError, f"{file} cannot be removed"):
                file.unlink()
                file.parent.rmdir()
    return freed


def _states_dir() -> Path:
    return state_dir() / "drafters"


def _header(state: bytes) -> bytes:
    return _HEADER + hashlib.sha256(state).hexdigest().encode() + b"\n"
