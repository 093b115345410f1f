"""Damage done to valid input: bytes changed, cut and repeated; JSON values of the wrong kind, size or depth."""

from __future__ import annotations

import struct
from random import Random
from typing import Any

NUMBERS = (
    0,
    1,
    2,
    3,
    7,
    8,
    9,
    31,
    32,
    33,
    127,
    255,
    256,
    6400,
    57600,
    2**16,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**63,
    2**64 - 1,
)

VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2, 3, 7, 1e-300, 1e308, float("inf"), float("nan"), 2**31, 2**63, 10**400, -(2**63),
    "", "x", "\x00", "\x1b]52;c;AAAA\x07", "é" * 300, "../../etc/passwd",
    [], {}, [[]], [None], {"": None}, [1, "a"], {"a": {"b": []}},
)  # fmt: skip


def mutated(data: bytes, random: Random) -> bytes:
    """These bytes with one to four changes."""
    changed = bytearray(data)
    for _ in range(random.randint(1, 4)):
        random.choice((_flip, _number, _cut, _repeat, _remove, _noise))(changed, random)
    return bytes(changed)


def mutated_json(value: Any, random: Random) -> Any:
    """A copy of this value with one to three places changed, anywhere in it."""
    changed = _copied(value)
    for _ in range(random.randint(1, 3)):
        changed = _changed(changed, random)
    return changed


def nested(depth: int) -> str:
    """JSON text of lists in lists."""
    return "[" * depth + "]" * depth


def _at(data: bytearray, random: Random) -> int:
    """A place in the data; the first kilobyte, where headers are, as often as all of it."""
    end = len(data) if random.random() < 0.5 else min(len(data), 1024)
    return random.randrange(end) if end else 0


def _flip(data: bytearray, random: Random) -> None:
    if data:
        data[_at(data, random)] ^= 1 << random.randrange(8)


def _number(data: bytearray, random: Random) -> None:
    layout = random.choice("BHIQ")
    size = struct.calcsize("<" + layout)
    at = _at(data, random)
    data[at : at + size] = (random.choice(NUMBERS) % 2 ** (8 * size)).to_bytes(size, "little")


def _cut(data: bytearray, random: Random) -> None:
    del data[_at(data, random) :]


def _repeat(data: bytearray, random: Random) -> None:
    at = _at(data, random)
    data[at:at] = data[at : at + random.randint(1, 64)]


def _remove(data: bytearray, random: Random) -> None:
    at = _at(data, random)
    del data[at : at + random.randint(1, 64)]


def _noise(data: bytearray, random: Random) -> None:
    at, length = _at(data, random), random.randint(1, 16)
    data[at : at + length] = random.randbytes(length)


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copied(inner) for key, inner in value.items()}
    return [_copied(inner) for inner in value] if isinstance(value, list) else value


def _changed(value: Any, random: Random) -> Any:
    keys = list(value) if isinstance(value, dict) else list(range(len(value))) if isinstance(value, list) else []
    if not keys or random.random() < 0.1:
        return _other(value, random)
    key = random.choice(keys)
    if random.random() < 0.7 and isinstance(value[key], dict | list):
        value[key] = _changed(value[key], random)
    elif random.random() < 0.2:
        del value[key]
    else:
        value[key] = _other(value[key], random)
    return value


def _other(value: Any, random: Random) -> Any:
    if isinstance(value, int | float) and not isinstance(value, bool) and random.random() < 0.5:
        return random.choice((value + 1, value - 1, -value, value * 2, value * 1000, value // 2, str(value), [value]))
    return _copied(random.choice(VALUES))
