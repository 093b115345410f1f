"""Random damage to lines of JSON: values replaced, moved and taken out, bytes changed, lines lost and repeated."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

HOSTILE = "\x1b]52;c;aGk=\x07\x1b[2J\x9b31m\u202eabc\u2028\x00\ufeff[/b][@click=app.quit]"
"""Codes that steer a terminal, marks that reorder text, and markup."""

VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 7, 255, 4096, 4097, -(2**31), 2**31, 2**53 + 1, 2**63, 2**64, 10**300, 0.5, -0.5,
    1e308, -1e308, 5e-324, "", " ", "\n", "x" * 5000, HOSTILE, "你好" * 50, [], {}, [[]], [None], {"": None},
    [0] * 5000, "accepted", "drafted", "end", "off", "none", "2026-01-01T00:00:00Z",
)  # fmt: skip

_DEEP = "[" * 3000 + "]" * 3000


def mutated(lines: Sequence[bytes], rng: random.Random) -> list[bytes]:
    """The lines with one to three pieces of damage."""
    damaged = list(lines)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        if damaged:
            rng.choice((_a_value, _a_value, _a_value, _a_value, _an_order, _bytes))(damaged, rng)
    return damaged


def shifted(line: bytes, rng: random.Random) -> bytes:
    """The line with one to three small changes that leave values of their kind: numbers moved, lists cut or grown."""
    message = json.loads(line)
    for _ in range(rng.choice((1, 1, 2, 3))):
        places = [(holder, key) for holder, key in _places(message) if not isinstance(holder[key], str | dict)]
        lists = [(holder, key) for holder, key in places if isinstance(holder[key], list)]
        holder, key = rng.choice(rng.choice((places, lists or places)))
        match holder[key]:
            case list() as values if values:
                at = rng.randrange(len(values))
                changed = rng.choice(([], values[:at] + values[at + 1 :], [values[at], *values], values[::-1]))
                holder[key] = changed
            case bool() | None:
                holder[key] = rng.choice((None, 0, 3))
            case int() | float() as number:
                holder[key] = rng.choice((number + 1, number - 1, 0, -1, 99, 10**9, -number))
    return json.dumps(message).encode()


def _a_value(lines: list[bytes], rng: random.Random) -> None:
    """Replace, repeat, take out or shift one value of one line."""
    at = _a_line(lines, rng)
    try:
        message = json.loads(lines[at])
    except (ValueError, RecursionError):
        return
    holder, key = rng.choice(_places(message))
    match rng.randrange(8):
        case 0 | 1 | 2 | 3:
            holder[key] = rng.choice(VALUES)
        case 4 if isinstance(holder[key], int | float) and not isinstance(holder[key], bool):
            holder[key] += rng.choice((-1, 1, -1000, 1000, 0.5))
        case 5:
            del holder[key]
        case 6 if isinstance(holder, list):
            holder.insert(rng.randrange(len(holder) + 1), holder[key])
        case 7:
            other, there = rng.choice(_places(message))
            holder[key], other[there] = other[there], holder[key]
        case _:
            holder[key] = rng.choice(VALUES)
    try:
        lines[at] = json.dumps(message).encode()
    except (ValueError, RecursionError):  # a value was put into itself
        lines[at] = _DEEP.encode()


def _a_line(lines: list[bytes], rng: random.Random) -> int:
    """One of the lines; a kind of message that comes once is as likely as one that comes often."""
    begins = sorted({line[:16] for line in lines})
    chosen = rng.choice(begins)
    return rng.choice([at for at, line in enumerate(lines) if line[:16] == chosen])


def _places(message: Any) -> list[tuple[Any, Any]]:
    """Every place of a value: what holds it, and its key there."""
    found: list[tuple[Any, Any]] = []
    todo = [message]
    while todo:
        holder = todo.pop()
        keys = list(holder) if isinstance(holder, dict) else range(len(holder))
        for key in keys:
            found.append((holder, key))
            if isinstance(holder[key], dict | list):
                todo.append(holder[key])
    return found or [([0], 0)]


def _an_order(lines: list[bytes], rng: random.Random) -> None:
    """Lose, repeat or swap lines."""
    one, other = rng.randrange(len(lines)), rng.randrange(len(lines))
    match rng.randrange(3):
        case 0:
            del lines[one]
        case 1:
            lines.insert(other, lines[one])
        case 2:
            lines[one], lines[other] = lines[other], lines[one]


def _bytes(lines: list[bytes], rng: random.Random) -> None:
    """Change some bytes of one line."""
    at = _a_line(lines, rng)
    line = bytearray(lines[at])
    for _ in range(rng.choice((1, 2, 8))):
        where = rng.randrange(len(line) + 1)
        match rng.randrange(3):
            case 0:
                line[where : where + 1] = bytes([rng.randrange(256)])
            case 1:
                del line[where : where + rng.randrange(1, 9)]
            case 2:
                line[where:where] = rng.choice((b"\x00", b"\xff", b"[" * 2000, b'"', b"}", b"\n", b"1e999", b"\\ud800"))
    lines[at] = bytes(line).replace(b"\n", b" ")
