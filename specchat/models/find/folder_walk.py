"""Searches folders of other programs, down to a fixed depth and up to a fixed number of entries."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

MOST_ENTRIES = 20_000
DEEPEST = 5


def entries(folder: Path) -> list[os.DirEntry[str]]:
    """What a folder holds, by name, hidden entries left out; nothing where it cannot be read."""
    found: list[os.DirEntry[str]] = []
    try:
        with os.scandir(folder) as listed:
            for entry in listed:
                if len(found) == MOST_ENTRIES:
                    break
                if not entry.name.startswith("."):
                    found.append(entry)
    except OSError:
        return []
    return sorted(found, key=lambda entry: entry.name)


def files_below(folder: Path, suffix: str = "", deepest: int = DEEPEST) -> Iterator[Path]:
    """The regular files below a folder, by name. Links to folders are not followed, so nothing is seen twice."""
    left = MOST_ENTRIES
    waiting = [(folder, 0)]
    while waiting:
        here, depth = waiting.pop()
        below: list[tuple[Path, int]] = []
        for entry in entries(here):
            left -= 1
            if left < 0:
                return
            try:
                if entry.is_dir(follow_symlinks=False):
                    below.append((Path(entry.path), depth + 1))
                elif entry.name.endswith(suffix) and entry.is_file():
                    yield Path(entry.path)
            except OSError:
                continue
        waiting += reversed([one for one in below if one[1] <= deepest])
