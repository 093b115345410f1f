"""GGUF files with wrong numbers, sizes and formats, and with damaged bytes, through the way that models are loaded."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from gguf import GGMLQuantizationType as Kind

from tests.fuzz.loading import look_at, must_work, speak
from tests.fuzz.mutate import NUMBERS, mutated
from tests.tiny_models import NUMBERS as METADATA
from tests.tiny_models import gguf_sizes, tiny_gguf

ATTEMPTS = 60

_KINDS = (Kind.F32, Kind.F16, Kind.BF16, Kind.Q4_0, Kind.Q4_1, Kind.Q5_0, Kind.Q8_0)
_FLOATS = (0.0, -1.0, 1e-30, 1e30, float("inf"), float("nan"))


def attempt(seed: int, folder: Path) -> None:
    random, path = Random(seed), folder / "model.gguf"
    if seed % 10 == 0:
        path.write_bytes(_undamaged())
        must_work(path)
        return
    if seed % 2:
        tiny_gguf(path, **_changes(random))
    else:
        path.write_bytes(mutated(_undamaged(), random))
    look_at(path)
    speak(path, random)


@cache
def _undamaged() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        return tiny_gguf(Path(folder) / "model.gguf").read_bytes()


def _changes(random: Random) -> dict[str, Any]:
    """One to three other numbers, sizes, formats or values."""
    changes: dict[str, dict[str, Any]] = {"numbers": {}, "sizes": {}, "kinds": {}, "values": {}}
    sizes = gguf_sizes()
    for _ in range(random.randint(1, 3)):
        name = random.choice(list(sizes))
        match random.choice(list(changes)):
            case "numbers":
                key = random.choice(list(METADATA))
                changes["numbers"][key] = _number(METADATA[key], random)
            case "sizes":
                changes["sizes"][name] = _sizes(sizes[name], random)
            case "kinds":
                changes["kinds"][name] = random.choice(_KINDS)
            case "values":
                changes["values"][name] = random.choice(_FLOATS)
    return changes


def _number(value: Any, random: Random) -> Any:
    if isinstance(value, float):
        return random.choice(_FLOATS)
    return random.choice((value + 1, value - 1, value * 2, -1, *(number for number in NUMBERS if number < 2**32)))


def _sizes(sizes: tuple[int, ...], random: Random) -> tuple[int, ...] | None:
    """Other sizes with rows of whole blocks, or none."""
    other = (random.choice((0, 1, 32, 64, 96, 128, 512)), random.choice((32, 64, 96, 160)))
    return random.choice((None, other[1:], other, (sizes[0], other[1]), (1, *other)))
