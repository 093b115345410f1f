"""Loading a pair: fetch what is missing, load target and draft model, check that they belong together."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from specchat.config import Catalog, ModelSpec
from specchat.decoding.vocabulary import TransformersVocabulary, Vocabulary
from specchat.engine.events import Event, Loading
from specchat.engine.loaded_pair import LoadedPair
from specchat.errors import TokenizerMismatch
from specchat.models import weights
from specchat.models.fit import fit_of
from specchat.models.loading import Loaded, compare_tokenizers, load_model, load_scripted
from specchat.models.machine import choose_device, default_threads
from specchat.models.recital import RecitalVocabulary
from specchat.settings import Settings


@dataclass(frozen=True)
class Loader:
    """Loads pairs of a catalog, telling about progress, until told to stop."""

    catalog: Catalog
    emit: Callable[[Event], None]
    cancelled: Callable[[], bool]

    def load(self, settings: Settings) -> LoadedPair:
        """The pair the settings name, on their device, in their number format."""
        began = time.perf_counter()
        torch.set_num_threads(settings.threads or default_threads())
        pair = self.catalog.pair(settings.pair)
        device = choose_device(settings.device)
        specs = {"target": self.catalog.model(pair.target)}
        if pair.draft is not None:
            specs["draft"] = self.catalog.model(pair.draft)
        for spec in specs.values():
            if not spec.scripted:
                weights.fetch(spec, self._report, self.cancelled)
        if "draft" in specs:
            _refuse_strangers(list(specs.values()))
        loaded = {role: self._load(spec, role, device, settings) for role, spec in specs.items()}
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
            notes=[note for one in loaded.values() for note in one.notes],
            load_s=time.perf_counter() - began,
        ).using(settings.threads)

    def _load(self, spec: ModelSpec, role: str, device: torch.device, settings: Settings) -> Loaded:
        if self.cancelled():
            raise weights.Cancelled(f"stopped before {spec.name} was read")
        if spec.scripted:
            return load_scripted(spec, role)
        self._say(spec.name)
        path = weights.locate(spec)
        say = lambda what: self._say(f"{spec.name}: {what}")  # noqa: E731
        return load_model(spec, path, device, settings.dtype, say, settings.kernels, guesses=role == "draft")

    def _vocabulary(self, target: Loaded) -> Vocabulary:
        if target.tokenizer is None:
            return RecitalVocabulary()
        return TransformersVocabulary(target.tokenizer, target.eos_ids)

    def _say(self, item: str) -> None:
        self.emit(Loading(stage="read", item=item, unit="steps"))

    def _report(self, progress: weights.Progress) -> None:
        p = progress
        self.emit(Loading(stage=p.stage, item=p.item, done=p.done, total=p.total, rate=p.rate))


def _refuse_strangers(models: list[ModelSpec]) -> None:
    """Refuse a draft model with other tokens by what the files say: reading the weights first would take long.

    Raises:
        TokenizerMismatch: with how many tokens differ, and one of them.
    """
    fit = fit_of(models)
    if fit.trouble == "tokens":
        raise TokenizerMismatch(f"{fit.refusals[0]}; choose a draft model of the same family")
