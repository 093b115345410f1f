"""The sampling settings that a model's makers recommend, as far as its files say so. Torch-free."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from specchat.errors import UsageError, WeightsError
from specchat.models.weights.config_file import read_object
from specchat.models.weights.gguf_header import read_header
from specchat.settings import OPTIONS

GENERATION_CONFIG = "generation_config.json"

NOTHING_SAID: Mapping[str, Any] = {"temperature": 0.7, "top_p": 0.9, "repetition_penalty": 1.05}
"""For models whose makers say nothing: warm enough that small models seldom repeat themselves."""

_HUB = {name: name for name in ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")}
_GGUF = {
    "general.sampling.temp": "temperature",
    "general.sampling.top_k": "top_k",
    "general.sampling.top_p": "top_p",
    "general.sampling.min_p": "min_p",
    "general.sampling.penalty_repeat": "repetition_penalty",
}
_SAME = ("temperature", "top_k", "top_p", "min_p", "presence_penalty", "frequency_penalty")
_OLLAMA = {**{name: name for name in _SAME}, "repeat_penalty": "repetition_penalty"}


def recommended_sampling(path: Path) -> dict[str, Any]:
    """The settings that a GGUF file or generation_config.json recommends, if any; WeightsError if it cannot be read."""
    if path.is_file():
        return _settings(read_header(path).metadata, _GGUF)
    file = path / GENERATION_CONFIG
    said = read_object(file) if file.is_file() else {}
    if said.get("do_sample") is False:
        return {}
    return ({"temperature": 1.0} if said.get("do_sample") else {}) | _settings(said, _HUB)


def sampling_of_ollama(parameters: Mapping[str, Any]) -> dict[str, Any]:
    return _settings(parameters, _OLLAMA)


def sampling_for_chat(path: Path | None, found: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The sampling settings of a chat with this model: as recommended, or mild ones where no temperature is.

    Args:
        path: where its files lie; None where they are not here.
        found: what another program's files recommend, which wins.
    """
    said = dict(found or {})
    with suppress(WeightsError):  # loading says what is wrong with the file
        said = (recommended_sampling(path) if path is not None else {}) | said
    return said if "temperature" in said else {**NOTHING_SAID, **said}


def _settings(said: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Those of the values that are settings here; values that are not numbers in range are ignored."""
    found: dict[str, Any] = {}
    for key, name in names.items():
        value = said.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        with suppress(UsageError, OverflowError, ValueError):  # out of range, beyond any float, not a number
            found[name] = OPTIONS[name].parse(_plain(value, OPTIONS[name].kind), "")
    return found


def _plain(value: float, kind: str) -> float:
    """A number as a person would write it: GGUF holds 0.7 as 0.699999988."""
    return int(value) if kind == "int" else round(float(value), 6)
