"""The trained drafters on this machine: made here, fetched or shipped; which of them fit a target. Torch-free."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from specchat.config import Catalog, DrafterSpec, ModelSpec
from specchat.config.directories import own_drafters_dir, shipped_drafters_dir
from specchat.config.file_reading import open_regular
from specchat.config.trained_drafters import DRAFT_MODEL, RefusedDrafter, TrainedDrafter, TrainedDrafters, read_drafter
from specchat.errors import ConfigError, WeightsError, nearest
from specchat.models.hub import checksum, model_state
from specchat.models.hub.model_state import StateKind, bytes_below
from specchat.models.hub.pair_check import place_of
from specchat.models.weights.model_files import differing_tokens
from specchat.models.weights.safetensors_header import read_entries

Origin = Literal["made here", "fetched", "shipped"]


@dataclass(frozen=True)
class ListedDrafter:
    """A trained drafter as lists show it, whether it is here or could be fetched.

    `problem` says why it cannot be used, whatever its state; sizes are of all its files. One that is here has a folder,
    and one that can be read a description.
    """

    name: str
    method: str
    target: str
    state: StateKind
    origin: Origin | Literal["named"]
    licence: str
    disk_bytes: int
    total_bytes: int | None
    problem: str = ""
    notes: str = ""
    drafter: TrainedDrafter | None = None
    folder: Path | None = None


def found_drafters(catalog: Catalog, methods: Collection[str]) -> dict[str, ListedDrafter]:
    """Every trained drafter that is here, by name. Of two with one name the user's own wins, then the fetched one.

    Reads descriptions and sizes, no weights.

    Args:
        methods: names of the methods that have weights.
    """
    fetched = [spec for spec in catalog.drafters.values() if model_state.state(spec).kind == "ready"]
    found = [_found(folder, "shipped", methods) for folder in _folders(shipped_drafters_dir())]
    found += [_fetched(spec, methods) for spec in fetched]
    found += [_found(folder, "made here", methods) for folder in _folders(own_drafters_dir())]
    return {one.name: one for one in found}


def listed_drafters(catalog: Catalog, methods: Collection[str]) -> list[ListedDrafter]:
    """Every trained drafter that is here or that models.toml names. Reads no weights."""
    found = found_drafters(catalog, methods)
    named = [_named(spec, methods) for spec in catalog.drafters.values() if spec.name not in found]
    return [*named, *found.values()]


def drafters_of(listed: Collection[ListedDrafter], target: ModelSpec) -> list[ListedDrafter]:
    """Those of the listed that were trained for this target, as far as that is known without hashing its weights."""
    sha256 = checksum.known_sha256(target)

    def fits(one: ListedDrafter) -> bool:
        return one.target == target.name if one.drafter is None else one.drafter.target_sha256 == sha256

    return [one for one in listed if fits(one)]


def _named(spec: DrafterSpec, methods: Collection[str]) -> ListedDrafter:
    state = model_state.state(spec)
    known = spec.method in methods
    problem = "" if known else f"method {spec.method!r} is not a drafter with weights{nearest(spec.method, methods)}"
    sizes = (state.disk_bytes, state.total_bytes)
    return ListedDrafter(
        spec.name, spec.method, spec.target, state.kind, "named", spec.licence, *sizes, problem, spec.notes
    )


def drafters_fitting(
    catalog: Catalog, target: ModelSpec, methods: Collection[str], target_sha256: Callable[[], str]
) -> TrainedDrafters:
    """The trained drafters as this target sees them; weights that fit are verified by reading them.

    Args:
        target_sha256: the checksum of the target's weights; asked for only where there are drafters.
    """
    found = found_drafters(catalog, methods)
    fitting: list[TrainedDrafter] = []
    refused: dict[str, RefusedDrafter] = {}
    lent: set[str] = set()
    for name, one in found.items():
        problem = one.problem
        if one.drafter is not None and not problem:
            problem = _stranger(one.drafter, target, target_sha256())
            if problem and _is_lent(catalog, one.drafter, target):
                problem = ""
                lent.add(name)
            problem = problem or damage(one.drafter)
            fitting += [] if problem else [one.drafter]
        if problem:
            refused[name] = RefusedDrafter(one.method, problem)
    fitting.sort(key=lambda drafter: (drafter.name not in lent, drafter.made, drafter.name), reverse=True)
    return TrainedDrafters(target.name, tuple(fitting), refused, _fetchable(catalog, target, found), frozenset(lent))


def _is_lent(catalog: Catalog, drafter: TrainedDrafter, target: ModelSpec) -> bool:
    """Whether a draft model of another target can draft for this one: it uses embedding and head of the target that it
    was trained for, whose weights must be here, unchanged, and which must have the same tokens."""
    lender = catalog.models.get(drafter.target)
    if drafter.method != DRAFT_MODEL or lender is None or checksum.known_sha256(lender) != drafter.target_sha256:
        return False
    try:
        places = [place for spec in (target, lender) if (place := place_of(spec)) is not None]
        return len(places) == 2 and not differing_tokens(*places)[0]
    except WeightsError:
        return False


def damage(drafter: TrainedDrafter) -> str:
    """The damage of the weights in words; empty where they are as described. Reads all of them."""
    file = drafter.weights
    try:
        if problem := _wrong_size(drafter):
            return problem
        with open_regular(file) as opened:
            sha256 = hashlib.file_digest(opened, "sha256").hexdigest()
        if sha256 != drafter.sha256:
            return f"{file} has changed: SHA-256 should be {drafter.sha256}, is {sha256}"
        read_entries(file)
    except OSError as error:
        return f"{file} cannot be read: {error.strerror or error}"
    except WeightsError as error:
        return str(error)
    return ""


def _wrong_size(drafter: TrainedDrafter) -> str:
    """What is wrong with the size of the weights, if anything."""
    try:
        size = drafter.weights.stat().st_size
    except OSError as error:
        return f"{drafter.weights} cannot be read: {error.strerror or error}"
    return "" if size == drafter.size else f"{drafter.weights} has {size} bytes, and should have {drafter.size}"


def _stranger(drafter: TrainedDrafter, target: ModelSpec, sha256: str) -> str:
    if drafter.target_sha256 == sha256:
        return ""
    if drafter.target == target.name:
        return f"it was trained for other weights of {drafter.target}"
    return f"it was trained for {drafter.target}, not for {target.name}"


def _folders(place: Path) -> list[Path]:
    """The folders below a place, in the order of their names; none where it cannot be looked at."""
    try:
        return sorted(path for path in place.iterdir() if path.is_dir() and not path.name.startswith((".", "_")))
    except OSError:
        return []


def _found(folder: Path, origin: Origin, methods: Collection[str], name: str = "") -> ListedDrafter:
    name, size = name or folder.name, bytes_below(folder)
    try:
        made = read_drafter(folder, methods, name)
    except ConfigError as error:
        return ListedDrafter(name, "", "", "ready", origin, "", size, size, str(error), folder=folder)
    sizes, problem = (size, size), _wrong_size(made)
    return ListedDrafter(
        name, made.method, made.target, "ready", origin, made.licence, *sizes, problem, drafter=made, folder=folder
    )


def _fetched(spec: DrafterSpec, methods: Collection[str]) -> ListedDrafter:
    found = _found(model_state.locate(spec), "fetched", methods, spec.name)
    problem = found.problem
    if found.drafter is not None and found.method != spec.method:
        problem = f"its method is {found.method!r}, and models.toml says {spec.method!r}"
    return replace(found, problem=problem, notes=spec.notes)


def _fetchable(catalog: Catalog, target: ModelSpec, found: Mapping[str, ListedDrafter]) -> dict[str, tuple[str, ...]]:
    absent = [spec for spec in catalog.drafters_for(target.name) if spec.name not in found]
    return {method: tuple(s.name for s in absent if s.method == method) for method in {s.method for s in absent}}
