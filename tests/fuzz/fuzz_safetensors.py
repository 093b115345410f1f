"""Folders of safetensors with wrong sizes and formats, damaged bytes, and damaged JSON beside them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from random import Random

import numpy as np

from tests.fuzz.loading import look_at, must_work, speak
from tests.fuzz.mutate import mutated, mutated_json, nested
from tests.tiny_models import hub_sizes, tiny_folder

ATTEMPTS = 60

_FLOATS = (0.0, 1e30, float("inf"), float("nan"))
_DTYPES = (np.float16, np.float64, np.int8, np.uint8, np.int32, np.bool_)
_TEXTS = ("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json")


def attempt(seed: int, folder: Path) -> None:
    random, path = Random(seed), folder / "model"
    tiny_folder(path)
    if seed % 10 == 0:
        must_work(path)
        return
    random.choice(_DAMAGES)(path, random)
    look_at(path)
    speak(path, random)


def _wrong_tensors(path: Path, random: Random) -> None:
    name = random.choice(list(hub_sizes()))
    rows, columns = random.choice((0, 1, 64, 96, 500)), random.choice((1, 32, 64, 65))
    changes: list[Callable[[], Path]] = [
        lambda: tiny_folder(
            path, sizes={name: random.choice((None, (rows,), (rows, columns), (rows, columns, 1), ()))}
        ),
        lambda: tiny_folder(path, dtypes={name: random.choice(_DTYPES)}),
        lambda: tiny_folder(path, values={name: random.choice(_FLOATS)}),
    ]
    random.choice(changes)()


def _damaged_weights(path: Path, random: Random) -> None:
    file = path / "model.safetensors"
    file.write_bytes(mutated(file.read_bytes(), random))


def _damaged_header(path: Path, random: Random) -> None:
    file = path / "model.safetensors"
    data = file.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.dumps(mutated_json(json.loads(data[8 : 8 + length]), random)).encode()
    file.write_bytes(len(header).to_bytes(8, "little") + header + data[8 + length :])


def _index(path: Path, random: Random) -> None:
    places = {"metadata": {}, "weight_map": dict.fromkeys(hub_sizes(), "model.safetensors")}
    (path / "model.safetensors.index.json").write_text(json.dumps(mutated_json(places, random)))


def _damaged_text(path: Path, random: Random) -> None:
    file = path / random.choice(_TEXTS)
    file.write_bytes(mutated(file.read_bytes(), random) if random.random() < 0.8 else nested(100_000).encode())


def _wrong_text(path: Path, random: Random) -> None:
    file = path / random.choice(_TEXTS)
    file.write_text(json.dumps(mutated_json(json.loads(file.read_text()), random)))


_DAMAGES = (_wrong_tensors, _damaged_weights, _damaged_header, _index, _damaged_text, _wrong_text)
