"""Loading a pair: fetch what is missing, load target and draft model, check that they belong together."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from specchat.config import Catalog, ModelSpec
from specchat.decoding.vocabulary import TransformersVocabulary, Vocabulary
from specchat.engine.events import Event, Loading
from specchat.models import weights
from specchat.models.loading import Loaded, compare_tokenizers, load_model, load_scripted
from specchat.models.machine import choose_device
from specchat.models.recital import RecitalVocabulary
from specchat.settings import Settings


@dataclass(frozen=True)
class LoadedPair:
    """A target, its draft model if it has one, and how they were loaded."""

    name: str
    target: Loaded
    draft: Loaded | None
    vocabulary: Vocabulary
    device: torch.device
    precision: str
    defaults: dict[str, Any]
    notes: list[str]
    load_s: float

    @property
    def key(self) -> str:
        """What the plain speed depends on."""
        names = f"{self.target.name}+{self.draft.name}" if self.draft else self.target.name
        return f"{names}|{self.device}|{self.precision}|{torch.get_num_threads()}"


@dataclass(frozen=True)
class Loader:
    """Loads pairs of a catalog, telling about progress, until told to stop."""

    catalog: Catalog
    emit: Callable[[Event], None]
    cancelled: Callable[[], bool]

    def load(self, settings: Settings) -> LoadedPair:
        """The pair the settings name, on their device, in their number format."""
        began = time.perf_counter()
        pair = self.catalog.pair(settings.pair)
        device = choose_device(settings.device)
        specs = {"target": self.catalog.model(pair.target)}
        if pair.draft is not None:
            specs["draft"] = self.catalog.model(pair.draft)
        for spec in specs.values():
            if not spec.scripted:
                weights.fetch(spec, self._report, self.cancelled)
        loaded = {role: self._load(spec, role, device, settings.dtype) for role, spec in specs.items()}
        target, draft = loaded["target"], loaded.get("draft")
        if draft is not None:
            compare_tokenizers(target, draft)
        return LoadedPair(
            name=pair.name,
            target=target,
            draft=draft,
            vocabulary=self._vocabulary(target),
            device=device,
            precision=target.precision,
            defaults=dict(pair.defaults),
            notes=[note for one in loaded.values() for note in one.notes],
            load_s=time.perf_counter() - began,
        )

    def _load(self, spec: ModelSpec, role: str, device: torch.device, dtype: str) -> Loaded:
        if self.cancelled():
            raise weights.Cancelled(f"stopped before {spec.name} was read")
        if spec.scripted:
            return load_scripted(spec, role)
        self._say(spec.name)
        return load_model(spec, weights.locate(spec), device, dtype, lambda what: self._say(f"{spec.name}: {what}"))

    def _vocabulary(self, target: Loaded) -> Vocabulary:
        if target.tokenizer is None:
            return RecitalVocabulary()
        return TransformersVocabulary(target.tokenizer, target.eos_ids)

    def _say(self, item: str) -> None:
        self.emit(Loading(stage="read", item=item, unit="steps"))

    def _report(self, progress: weights.Progress) -> None:
        p = progress
        self.emit(Loading(stage=p.stage, item=p.item, done=p.done, total=p.total, rate=p.rate))
