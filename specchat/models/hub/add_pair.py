"""A pair of the user's own before it is written down: what its files are, and what speaks against it. Torch-free."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from specchat.compiled.machine import free_bytes, has_graphics_card
from specchat.config import Catalog, HubSource, ModelFile, ModelSpec, PairSpec, PathSource, cache_dir
from specchat.config.directories import expanded
from specchat.config.values import gguf_parts, gguf_stem, is_later_part
from specchat.errors import DamagedWeights, SpecchatError, UsageError, WeightsError, meant, short
from specchat.models.hub import repositories as hub
from specchat.models.hub.disk import Meter, free_disk_bytes, megabytes
from specchat.models.hub.model_state import model_in
from specchat.models.hub.pair_check import check_pair, place_of
from specchat.models.hub.recommended_sampling import GENERATION_CONFIG, sampling_for_chat
from specchat.models.weights.model_files import describe_model, needed_bytes, parameters_of
from specchat.settings import GREEDY

_REPOSITORY = re.compile(r"([\w.-]+/[\w.-]+)(?:[/:]([\w./-]+\.gguf)|:([\w-]+))?", re.ASCII)

_LOOKED_UP = {"drafter": "suffix", "policy": "best_first", "controller": "goodput", "width": 2, "depth": 8, "nodes": 8}


@dataclass
class NewPair:
    """A pair as it would be written, and what speaks against it. `scratch` is a folder for what is looked at."""

    catalog: Catalog
    scratch: Path
    models: list[ModelSpec] = field(default_factory=list)
    fresh: list[ModelSpec] = field(default_factory=list)  # models that are not known yet
    problems: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    sampling: Mapping[str, Any] = field(default_factory=dict)  # what another program recommends for the target
    names: Mapping[Path, str] = field(default_factory=dict)  # of files whose own names are not descriptive
    _other_tokens: tuple[str, ...] = ()  # draft models whose tokens are not the target's
    _places: dict[str, Path] = field(default_factory=dict)  # of models that are elsewhere: what was fetched to look at

    def pair(self, name: str, target: str, drafts: Sequence[str] = (), summary: str = "") -> PairSpec | None:
        """The pair of these models; None where there are problems. Each is named as a file, a folder, a repository
        (`owner/name`, with GGUF files `owner/name/file.gguf` or `owner/name:Q4_K_M`) or a model that is known.
        """
        self._accept_name(name)
        for text in (target, *drafts):
            try:
                self.models.append(self.catalog.models.get(text) or self._named(self._model(text), text))
            except SpecchatError as error:
                self.problems.append(str(error))
        if not self.problems:
            self._judge()
        if self.problems:
            return None
        names = tuple(dict.fromkeys(model.name for model in self.models[1:]))
        own = {**self._drafting(names), **self._sampling(self.models[0])}
        return PairSpec(name, self.models[0].name, names, summary=summary, own=own, yours=True)

    def _drafting(self, drafts: Sequence[str]) -> Mapping[str, Any]:
        """How to speculate with these draft models: the text is looked into first, then all of them are asked."""
        if not drafts:
            return _LOOKED_UP
        methods = ["cross_vocabulary" if name in self._other_tokens else "draft_model" for name in drafts]
        others = [f"{method}(model={name})" for method, name in zip(methods[1:], drafts[1:], strict=True)]
        options = {"merge.of": ",".join(["suffix", methods[0], *others])}
        return _LOOKED_UP | {"drafter": "merge", "method_options": options}

    def _sampling(self, target: ModelSpec) -> Mapping[str, Any]:
        """How a chat samples from it: as a pair that came with specchat does, else as its files recommend."""
        if target not in self.fresh:
            for pair in self.catalog.pairs.values():
                if pair.target == target.name and "temperature" in pair.defaults:
                    return {name: pair.defaults[name] for name in GREEDY if name in pair.defaults}
        return sampling_for_chat(self._places.get(target.name) or place_of(target), self.sampling)

    def _accept_name(self, name: str) -> None:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
            self.problems.append(f"{name!r} is not a valid name: letters, digits, '.', '_' and '-'")
        elif name in self.catalog.pairs:
            way = f"; `specchat models forget {name}` makes room" if self.catalog.pairs[name].yours else ""
            self.problems.append(f"a pair is called {name!r} already{way}")

    def _judge(self) -> None:
        fit = check_pair(self.models, places=self._places, alike=())
        self._other_tokens = fit.other_tokens
        self.problems += fit.refusals
        self.remarks += fit.remarks
        free = None if has_graphics_card() else free_bytes()
        if fit.needed_bytes is not None and free is not None and fit.needed_bytes > free:
            self.remarks.append(
                f"it needs about {megabytes(fit.needed_bytes)} of memory; {megabytes(free)} are free now"
            )

    def _named(self, model: ModelSpec, text: str) -> ModelSpec:
        """The model under a name that is free, or the one that is known and has the same source."""
        for known in [*self.catalog.models.values(), *self.fresh]:
            if model.sources[0] in known.sources:
                return known
        taken = {*self.catalog.models, *(one.name for one in self.fresh)}
        candidates = (model.name if number == 1 else f"{model.name}-{number}" for number in range(1, 1000))
        named = replace(model, name=next(name for name in candidates if name not in taken))
        self.fresh.append(named)
        if (place := self.scratch / _folder_of(text)).is_dir():
            self._places[named.name] = place
        return named

    def _model(self, text: str) -> ModelSpec:
        is_path = text.startswith(("/", "~", ".")) or "\\" in text or os.path.exists(text)
        return _of_path(text, self.names) if is_path else self._of_hub(text)

    def _of_hub(self, text: str) -> ModelSpec:
        """A repository that exists and has room here; what tells its shape and tokens is fetched to look at."""
        match = _REPOSITORY.fullmatch(text)
        if match is None:
            raise UsageError(
                f"{short(text)} is not a file, a repository or a known model{meant(text, self.catalog.models)}"
            )
        source = HubSource(match[1], match[2])
        listing = hub.list_repository(source)
        if match[3]:
            source = HubSource(match[1], _quantised(listing, match[3]))
        taken = _taken(source, listing)
        size = sum(file.size or 0 for file in taken)
        _need_room(source.repo, size)
        self.remarks.append(f"{source.repo}: {megabytes(size)} to fetch")
        if source.file is None:
            self._fetch_small_files(listing, self.scratch / _folder_of(text))
        else:
            self.remarks.append(f"{source.repo}: the shape and the tokens of a GGUF file are looked at once it is here")
        parameters = parameters_of(size, gguf=source.file is not None) or None
        name = gguf_stem(Path(source.file)) if source.file else source.repo.split("/")[1]
        return ModelSpec(_slug(name), (source,), parameters=parameters)

    def _fetch_small_files(self, listing: hub.Listing, folder: Path) -> None:
        """What says of which shape a model is and which tokens it has."""
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("config.json", "tokenizer.json", GENERATION_CONFIG):
            if name in listing.files:
                meter = Meter("fetch", name, listing.files[name].size or 0, lambda progress: None, lambda: False)
                shutil.copyfile(hub.fetch_from_hub(listing, name, folder / "parts", meter), folder / name)


def _of_path(text: str, names: Mapping[Path, str]) -> ModelSpec:
    path = expanded(text).absolute()
    if not os.path.exists(path):  # never raises
        raise DamagedWeights(f"{path} does not exist")
    place = model_in(path)
    seen = describe_model(place)
    name = names.get(path) or (gguf_stem(place) if place.is_file() else place.name)
    return ModelSpec(_slug(name), (PathSource(path),), (), "", seen.context_tokens, seen.parameters or None)


def _taken(source: HubSource, listing: hub.Listing) -> list[ModelFile]:
    """The files of a repository that would be fetched."""
    ggufs = _gguf_files(listing)
    if source.file is not None:
        parts = gguf_parts(source.file)
        if missing := [part for part in parts if part not in listing.files]:
            raise UsageError(f"{source.repo} has no file {missing[0]!r}{meant(missing[0], ggufs)}")
        return [listing.files[part] for part in parts]
    if ggufs and not any(name.endswith(".safetensors") for name in listing.files):
        raise UsageError(f"{source.repo} has GGUF files; name one of them: {_choice(listing, ggufs)}")
    return list(hub.weights_in(listing).values())


_OF_PICTURES = re.compile(r"(^|[-_./])mmproj")
_QUANTISATION = re.compile(
    r"[-_.]((?:UD-)?(?:I?Q\d\w*|TQ\d\w*|MXFP4\w*|BF16|F16|F32))(?:-\d{5}-of-\d{5})?\.gguf$", re.IGNORECASE
)


def _gguf_files(listing: hub.Listing) -> list[str]:
    """The GGUF files of language models, of a model in several files the first, the smallest before the larger."""
    found = [name for name in listing.files if name.endswith(".gguf") and not is_later_part(name)]
    return sorted((name for name in found if not _OF_PICTURES.search(name)), key=lambda n: (_size(listing, n), n))


def _size(listing: hub.Listing, name: str) -> int:
    return sum(listing.files[part].size or 0 for part in gguf_parts(name) if part in listing.files)


def _quantised(listing: hub.Listing, quantisation: str) -> str:
    """The file of a repository that is quantised so."""
    ggufs = _gguf_files(listing)
    for name in ggufs:
        if (found := _QUANTISATION.search(name)) and found[1].lower() == quantisation.lower():
            return name
    choice = _choice(listing, ggufs) if ggufs else "it has no GGUF files"
    raise UsageError(f"{listing.repo} has nothing quantised as {quantisation}: {choice}")


def _choice(listing: hub.Listing, ggufs: Sequence[str]) -> str:
    """Files to choose from as one line, with their sizes, and which of them will not fit in the memory that is free."""
    free = None if has_graphics_card() else free_bytes()
    told = []
    for name in ggufs[:_MOST_TOLD]:
        size, quantisation = _size(listing, name), _QUANTISATION.search(name)
        needed = needed_bytes(parameters_of(size, gguf=True), "int4")
        fits = "" if free is None or needed <= free else ", more than fits here"
        shown = f"{listing.repo}:{quantisation[1]}" if quantisation else f"{listing.repo}/{name}"
        told.append(f"{shown} ({megabytes(size)}{fits})")
    more = [f"{len(ggufs) - _MOST_TOLD} more"] if len(ggufs) > _MOST_TOLD else []
    return ", ".join(told + more)


_MOST_TOLD = 12


def _need_room(repo: str, size: int) -> None:
    home = cache_dir()
    free = free_disk_bytes(home)
    if size > free:
        raise WeightsError(f"{repo} has {megabytes(size)}, and {megabytes(free)} are free on the disk of {home}")


def _folder_of(text: str) -> str:
    return re.sub(r"[^\w.-]+", "--", text).lstrip(".-") or "x"


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9._-]+", "-", text.lower()).strip("-._") or "model"
