"""Methods and options as an engine describes them: for `specchat methods` and the settings panel."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from specchat.engine.protocol.bounds import Kind, Name, Words


class OptionInfo(Struct, frozen=True):
    """One option, as the settings panel needs it. `kind` is int, float, str or bool."""

    name: Name
    kind: Kind
    default: Any
    help: Words
    unit: Name = ""
    minimum: float | None = None
    maximum: float | None = None
    least_above_zero: float | None = None
    choices: list[Name] = []
    live: bool = True


class MethodInfo(Struct, frozen=True):
    """One method, as `specchat methods` prints it."""

    family: Name
    name: Name
    summary: Words
    source: Words
    lossless: Words
    options: list[OptionInfo] = []
    needs_draft_model: bool = False
