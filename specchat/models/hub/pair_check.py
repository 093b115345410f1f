"""Whether a pair would work here, before it is loaded: shapes, tokens, memory. Torch-free."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from specchat.config import ModelSpec
from specchat.errors import WeightsError
from specchat.models.hub import model_state
from specchat.models.hub.model_state import model_in, user_path
from specchat.models.weights.model_files import (
    ModelDescription,
    describe_model,
    differing_tokens,
    needed_bytes,
    parameters_of,
    processor_precision,
)

Trouble = Literal["", "files", "shape", "tokens"]


@dataclass(frozen=True)
class PairCheck:
    """The objections to a pair, in words; empty where none is known.

    `refusals` say why it cannot work, `trouble` what they are about, `remarks` what is slower than it could be.
    `needed_bytes` is the main memory that a processor would take for it, None where sizes are not known.
    `other_tokens` names the draft models whose tokens are known not to be the target's.
    """

    trouble: Trouble = ""
    refusals: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    needed_bytes: int | None = None
    other_tokens: tuple[str, ...] = ()


def check_pair(
    models: Sequence[ModelSpec],
    dtype: str = "auto",
    places: Mapping[str, Path] | None = None,
    *,
    alike: Collection[str] | None = None,
) -> PairCheck:
    """How a target and, if there are more, its draft models fit this machine and each other.

    Args:
        places: where to look at models, by name, whose weights are not here.
        alike: names of the draft models whose tokens must be the target's, None for all; of the others it is a remark
            if they are not.
    """
    trouble: Trouble = ""
    refusals: list[str] = []
    remarks: list[str] = []
    needed: list[int | None] = []
    here: dict[str, Path] = {}
    for spec in models:
        try:
            if (place := place_of(spec, places or {})) is not None:
                here[spec.name] = place
            seen = None if place is None else describe_model(place)
        except WeightsError as error:
            trouble = "files"
            refusals.append(str(error))
            continue
        if seen is not None and seen.refusal:
            trouble = trouble or "shape"
            refusals.append(f"{spec.name} {seen.refusal}")
        if seen is not None and seen.remark:
            remarks.append(f"{spec.name}: {seen.remark}")
        needed.append(_needed(spec, seen, dtype))
    strangers: dict[str, str] = {}
    if not refusals:
        target, *drafts = models
        strangers = {draft.name: how for draft in drafts if (how := _differing(target, draft, here))}
    for name, how in strangers.items():
        if alike is None or name in alike:
            refusals.append(f"{name} cannot draft for {models[0].name}: {how}")
            trouble = "tokens"
        else:
            remarks.append(f"{name} drafts for {models[0].name} through 'cross_vocabulary': {how}")
    known = [size for size in needed if size is not None]
    memory = sum(known) if len(known) == len(models) else None
    return PairCheck(trouble, tuple(refusals), tuple(remarks), memory, tuple(strangers))


def broken(spec: ModelSpec) -> str:
    """Why the model's files, as far as they are here, cannot be read; empty where they can."""
    try:
        if (place := place_of(spec)) is not None:
            describe_model(place)
    except WeightsError as error:
        return str(error)
    return ""


def place_of(spec: ModelSpec, places: Mapping[str, Path] = {}) -> Path | None:
    """Where the model's files can be looked at, by `places` or here; WeightsError if a named place holds no model."""
    if spec.name in places:
        return places[spec.name]
    if spec.scripted:
        return None
    if (own := user_path(spec)) is not None:
        return model_in(own)
    return model_state.locate(spec) if model_state.state(spec).kind == "ready" else None


def _needed(spec: ModelSpec, seen: ModelDescription | None, dtype: str) -> int | None:
    if spec.scripted:
        return 0
    total = model_state.state(spec).total_bytes
    quantised = seen.quantised if seen else spec.is_gguf
    precision = processor_precision(dtype, quantised=quantised, own=seen is None or seen.own)
    if seen is not None and seen.quantised:  # the file's own figures are the most accurate
        return needed_bytes(seen.parameters, precision, seen.four_bit)
    parameters = spec.parameters or (seen.parameters if seen else 0) or (total and parameters_of(total, gguf=quantised))
    return needed_bytes(parameters, precision) if parameters else None


def _differing(target: ModelSpec, draft: ModelSpec, here: Mapping[str, Path]) -> str:
    """How the draft model's tokens differ from the target's, where both can be looked at; empty where they do not."""
    if target.scripted or draft.scripted:
        return "" if target.scripted == draft.scripted else "they have different tokens"
    if target.name not in here or draft.name not in here:
        return ""
    try:
        count, word = differing_tokens(here[target.name], here[draft.name])
    except WeightsError:  # no table that can be read beforehand: loading compares them
        return ""
    return f"{count} tokens of their tables differ, such as {word!r}" if count else ""
