"""The pairs that found models make: a target, and the smallest model that drafts for it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from specchat.compiled.machine import free_bytes, has_graphics_card
from specchat.config import Catalog, ModelSpec, PathSource
from specchat.config.values import gguf_parts, is_later_part
from specchat.errors import DamagedWeights, WeightsError
from specchat.models.hub.found_models import FoundModel
from specchat.models.hub.model_state import bytes_below, model_in
from specchat.models.hub.pair_check import check_pair
from specchat.models.weights.model_files import describe_model, token_digest

_SMALLER = 0.5
"""A draft model has at most this share of the target's parameters: a larger one takes longer than it saves."""

_MUCH_SMALLER = 0.25
"""The same of a draft model with other tokens, of whose guesses some are lost in translation."""

MOST_MODELS = 500

_COMPANION = re.compile(r"(^|[-_.])mmproj([-_.]|$)", re.IGNORECASE)


@dataclass(frozen=True)
class FoundPair:
    """A pair as it would be added.

    Args:
        disk_bytes: of its files, which stay where they are.
        needed_bytes, free_bytes: main memory; None where it is not known, or where a graphics card has its own.
        added: the pair that it is already, if it was added before.
        translated: whether the draft model has other tokens than the target, so that its guesses are translated.
    """

    name: str
    target: FoundModel
    draft: FoundModel | None
    disk_bytes: int
    needed_bytes: int | None
    free_bytes: int | None
    added: str = ""
    translated: bool = False

    @property
    def fits(self) -> bool | None:
        """Whether it fits in memory; None where that is not known."""
        if self.needed_bytes is None or self.free_bytes is None:
            return None
        return self.needed_bytes <= self.free_bytes


@dataclass(frozen=True)
class Findings:
    """Pairs to choose from and the models that cannot run, with the reason. Pairs with a draft model come first, those
    whose tokens are the same before the others."""

    pairs: tuple[FoundPair, ...]
    refused: tuple[tuple[FoundModel, str], ...]


@dataclass(frozen=True)
class _Seen:
    """A model that can run."""

    found: FoundModel
    place: Path
    parameters: int
    tokens: str
    disk_bytes: int
    needed_bytes: int | None


def find_pairs(catalog: Catalog, models: Iterable[FoundModel]) -> Findings:
    """Every pair that these models make, each model once, and each that can run a target."""
    seen: list[_Seen] = []
    refused: list[tuple[FoundModel, str]] = []
    for found in _distinct(models):
        try:
            seen.append(_look_at(found))
        except WeightsError as error:
            refused.append((found, str(error)))
    drafts = {one.found.path: _draft_for(one, seen) for one in seen}
    order = sorted(seen, key=lambda one: (_kind(one, drafts[one.found.path]), -one.parameters, one.found.name))
    free = None if has_graphics_card() else free_bytes()
    taken = set(catalog.pairs)
    pairs = [_pair(catalog, one, drafts[one.found.path], free, taken) for one in order]
    return Findings(tuple(pairs), tuple(refused))


def _distinct(models: Iterable[FoundModel]) -> list[FoundModel]:
    """Each file once, however many names it has; what belongs to another model left out."""
    by_place: dict[str, FoundModel] = {}
    for found in models:
        if len(by_place) == MOST_MODELS:
            break
        if not _COMPANION.search(found.path.stem) and not is_later_part(found.path.name):
            by_place.setdefault(os.path.realpath(found.path), found)
    return list(by_place.values())


def _look_at(found: FoundModel) -> _Seen:
    """What the model's files say; WeightsError if it cannot be read, or cannot run."""
    place = model_in(found.path)
    seen = describe_model(place)
    if seen.refusal:
        raise DamagedWeights(seen.refusal)
    spec = ModelSpec("x", (PathSource(found.path),), context_tokens=seen.context_tokens, parameters=seen.parameters)
    files = list(map(Path, gguf_parts(str(place)))) if place.is_file() else sorted(place.glob("*.safetensors"))
    size = sum(map(bytes_below, files))
    return _Seen(found, place, seen.parameters, token_digest(place), size, check_pair([spec]).needed_bytes)


def _draft_for(target: _Seen, models: Sequence[_Seen]) -> _Seen | None:
    """The smallest model with the target's tokens that is small enough; without one, the smallest with others."""
    alike = [one for one in models if one.tokens == target.tokens and one.parameters <= _SMALLER * target.parameters]
    fitting = alike or [one for one in models if one.parameters <= _MUCH_SMALLER * target.parameters]
    return min(fitting, key=lambda one: (one.parameters, one.disk_bytes, one.found.name), default=None)


def _kind(target: _Seen, draft: _Seen | None) -> int:
    """0 for a draft model with the same tokens, 1 for one with others, 2 for none."""
    return 2 if draft is None else int(draft.tokens != target.tokens)


def _pair(catalog: Catalog, target: _Seen, draft: _Seen | None, free: int | None, taken: set[str]) -> FoundPair:
    both = [target] if draft is None else [target, draft]
    needed = [one.needed_bytes for one in both]
    added = _added(catalog, target.found.path)
    base = _short(target.found.name)
    names = (base if number == 1 else f"{base}-{number}" for number in range(1, len(taken) + 2))
    name = added or next(name for name in names if name not in taken)
    taken.add(name)
    return FoundPair(
        name=name,
        target=target.found,
        draft=draft.found if draft else None,
        disk_bytes=sum(one.disk_bytes for one in both),
        needed_bytes=None if None in needed else sum(size or 0 for size in needed),
        free_bytes=free,
        added=added,
        translated=_kind(target, draft) == 1,
    )


def _added(catalog: Catalog, path: Path) -> str:
    """The pair of the catalog whose target is read from there."""
    source = PathSource(path)
    names = {model.name for model in catalog.models.values() if source in model.sources}
    return next((pair.name for pair in catalog.pairs.values() if pair.target in names), "")


def _short(name: str) -> str:
    """A pair's name from a model's: `llama3.2:3b` → `llama3.2-3b`, `Qwen/Qwen3-0.6B` → `qwen3-0.6b`."""
    last = name.rsplit("/", 1)[-1].removesuffix(".gguf").removesuffix(":latest").lower()
    return re.sub(r"[^a-z0-9._-]+", "-", last).strip("-._")[:60] or "model"
