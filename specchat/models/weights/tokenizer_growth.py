"""Refuses a tokenizer.json that makes text much longer before it looks for tokens, as no published one does.

The library believes the file: parts that each write a thousand characters for one make a billion of three, and a prompt
would take all memory. Names of added tokens go through the same parts while the file is loaded.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypedDict

try:
    import msgspec

    from specchat.config.unreadable import UNREADABLE
except ImportError:  # the checks on a GPU run without it
    msgspec = None  # type: ignore[assignment]

from specchat.errors import DamagedWeights
from specchat.models.weights.json_file import parse_object, read_whole
from specchat.models.weights.number_limits import shown

MOST_GROWTH = 1000
"""Times that text may grow. Published tokenizers reach 18, with what Unicode spells out for one character."""

MOST_PARTS = 64
"""Parts of each kind; published tokenizers have some ten."""

_INNER = ("normalizers", "pretokenizers", "processors")


class _Parts(TypedDict, total=False):
    """What is looked at of the file. The vocabulary is nearly all of it."""

    normalizer: Any
    pre_tokenizer: Any
    post_processor: Any


def refuse_growth(file: Path) -> None:
    """Refuse a tokenizer.json whose parts together may make text more than MOST_GROWTH times as long.

    Raises:
        WeightsError: names the file and the part, or says that the file cannot be read.
    """
    said, together = _parts_of(file), 1
    for name in _Parts.__annotations__:
        parts = list(_single_parts(said.get(name)))
        if len(parts) > MOST_PARTS:
            raise DamagedWeights(f"{file}: {name} has {len(parts):,} parts; at most {MOST_PARTS} are used")
        growths = [_growth(part) for part in parts]
        if (growth := math.prod(growths)) > MOST_GROWTH:
            worst = parts[growths.index(max(growths))]
            raise DamagedWeights(
                f"{file}: {name} makes text up to {growth:,} times as long, by {shown(worst.get('type'))} above all; "
                f"at most {MOST_GROWTH:,} times is used"
            )
        together *= growth
    if together > MOST_GROWTH:
        raise DamagedWeights(
            f"{file}: its parts together make text up to {together:,} times as long; "
            f"at most {MOST_GROWTH:,} times is used"
        )


def _parts_of(file: Path) -> Mapping[str, Any]:
    """The parts that the file names. msgspec passes the vocabulary over, which takes a seventh of the time."""
    data = read_whole(file)
    if msgspec is None:
        return parse_object(data, str(file))
    try:
        return msgspec.json.decode(data, type=_Parts)
    except RecursionError:
        raise DamagedWeights(f"{file} cannot be read: it is nested too deep") from None
    except UNREADABLE as error:
        raise DamagedWeights(f"{file} cannot be read: {error}") from None


def _single_parts(part: Any) -> Iterator[dict[str, Any]]:
    """The parts that this one is made of, or itself; the library refuses anything else."""
    if isinstance(part, dict):
        inner = [one for key in _INNER if isinstance(part.get(key), list) for one in part[key]]
        yield from [part] if not inner else (single for one in inner for single in _single_parts(one))


def _growth(part: dict[str, Any]) -> int:
    """How many characters this part may make of one, at least 1."""
    match part:
        case {"type": "Prepend", "prepend": str(text)}:
            return 1 + len(text)
        case {"type": "Replace", "pattern": {"String": str(found)}, "content": str(text)} if found:
            return max(1, len(text))
        case {"type": "Replace", "content": str(text)}:  # a pattern can fit where nothing stands
            return 1 + len(text)
        case {"type": "Precompiled", "precompiled_charsmap": str(packed)}:
            return _longest_replacement(packed)
        case {"type": "ByteLevel"}:
            return 2
        case {"type": "TemplateProcessing", "single": list(pieces)}:
            return max(1, sum(isinstance(piece, dict) and "Sequence" in piece for piece in pieces))
        case _:
            return 1


def _longest_replacement(packed: str) -> int:
    """The longest text of SentencePiece's table: four bytes say how long its trie is, then texts end in a zero."""
    try:
        table = base64.b64decode(packed)
    except binascii.Error:
        return 1  # the library refuses it
    texts = table[4 + int.from_bytes(table[:4], "little") :]
    return max(1, *(len(text.decode(errors="replace")) for text in texts.split(b"\0")))
