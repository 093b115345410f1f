"""Whether two folders hold the same tokenizer: one of a large vocabulary takes a second to load and 100 MB to keep."""

from __future__ import annotations

from filecmp import cmp
from pathlib import Path

_WHOLE = "tokenizer.json"
_BESIDE = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")


def same_tokenizer(folder: Path, other: Path) -> bool:
    """Whether the files say the same, byte for byte. Files of other kinds than these are never the same."""
    if not ((folder / _WHOLE).is_file() and (other / _WHOLE).is_file()):
        return False
    return all(_same(folder / name, other / name) for name in (_WHOLE, *_BESIDE))


def _same(file: Path, other: Path) -> bool:
    """Whether both are missing or hold the same bytes."""
    if file.is_file() and other.is_file():
        return cmp(file, other, shallow=False)
    return file.is_file() == other.is_file()
