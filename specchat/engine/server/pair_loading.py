"""Loading a pair: fetch what is missing, load target and the draft models in use, check that they belong together."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TYPE_CHECKING

import torch

from specchat.config import Catalog, ModelSpec, PairSpec
from specchat.config.datastore_files import Datastores
from specchat.config.trained_drafters import DRAFT_MODEL, TrainedDrafters
from specchat.core.seams import TargetElsewhere
from specchat.core.vocabulary import table_sha256
from specchat.decoding.combinations import drafters_to_fetch, refuse_unknown_drafts, trained_in_use
from specchat.decoding.families import methods_with_weights
from specchat.decoding.vocabulary import TransformersVocabulary, Vocabulary
from specchat.drafters.choice import choose_drafter, drafts_used
from specchat.engine.protocol.events import Event, Loading
from specchat.engine.server.load_times import CompileAhead, LoadTimes, ReadingProgress, load_key
from specchat.engine.server.loaded_pair import LoadedDraft, LoadedPair
from specchat.engine.server.memory import (
    bytes_besides,
    limit_memory,
    limit_with_drafts,
    refuse_by_size,
    set_aside,
    weight_limit,
)
from specchat.errors import CombinationError, TokenizerMismatch, UsageError, WeightsNotHere
from specchat.models.backends.llama_cpp import LLAMA
from specchat.models.backends.scripted import ScriptedModel, ScriptedVocabulary, scripted_says
from specchat.models.hub import checksum, fetching, model_state
from specchat.models.hub.disk import Cancelled, Progress, megabytes
from specchat.models.hub.pair_check import check_pair
from specchat.models.hub.trained_drafters import drafters_fitting, found_drafters
from specchat.models.machine import choose_devices, launched_ranks, threads_for, threads_of_rank, unused_card
from specchat.models.model_loading import (
    Loaded,
    compare_tokenizers,
    differing_tokens,
    load_model,
    own_weights,
    streaming_line,
)
from specchat.models.remote.model import load_remote
from specchat.models.shipped_mtp import with_shipped_head
from specchat.models.trained_draft_model import load_trained_draft
from specchat.settings import Settings

if TYPE_CHECKING:
    from specchat.models.ranks.leading import Ranks


NOWHERE = "0" * 64
"""The checksum of a target that cannot be asked for it: no trained drafter fits."""


_SCRIPTED = {"target": (6, 0.012), "draft": (2, 0.003)}
"""How many tokens the scripted models look back, and how long a pass of theirs takes, in seconds."""


@dataclass(frozen=True)
class Loader:
    """Loads pairs of a catalog, telling about progress, until told to stop.

    Args:
        streams: whether layers of a target may stay on the disk that `memory` has no room for, and the context be cut
            to what a device has free: no other pair is there that could give its memory back.
        ranks: those of the pair before, which serve the next one too where the devices are the same.
    """

    catalog: Catalog
    emit: Callable[[Event], None]
    cancelled: Callable[[], bool]
    times: LoadTimes | None = None
    streams: bool = True
    ranks: Ranks | None = None
    elsewhere: TargetElsewhere | None = None

    def load(self, settings: Settings, others: Sequence[Settings] = ()) -> LoadedPair:
        """The pair the settings name, on their device, in their number format, with the draft models they use.

        Args:
            others: settings that the pair is used with as well; the draft models that they use are loaded too.
        """
        if not settings.target_at:
            return self._load_pair(settings, others)
        began = time.perf_counter()
        name = self.catalog.pair(settings.pair).target
        progress = ReadingProgress(self.emit, None, "")
        progress.say(f"{name} at {settings.target_at}")
        target = load_remote(name, settings, progress.say, self.cancelled)
        assert isinstance(target.model, TargetElsewhere), "it was loaded there"
        try:
            loaded = replace(self, elsewhere=target.model)._load_pair(settings, others, target)
            return replace(loaded, load_s=time.perf_counter() - began)
        except BaseException:
            target.model.close()
            raise

    def _load_pair(
        self, settings: Settings, others: Sequence[Settings] = (), target: Loaded | None = None
    ) -> LoadedPair:
        """The same; `target` is one on another machine, which is loaded already."""
        began = time.perf_counter()
        torch.set_num_threads(threads_for(settings.threads))
        pair = self.catalog.pair(settings.pair)
        devices = choose_devices(settings.device)
        if settings.target_at and len(devices) > 1:
            raise UsageError("device shares the target out here, and target_at has it elsewhere: use one of them")
        if len(devices) == 1:
            devices *= launched_ranks()
        device, ranks = devices[0], None
        for one in (settings, *others):
            refuse_unknown_drafts(one, self.draft_names(pair))
        used = {name for one in (settings, *others) for name in drafts_used(one, pair.drafts)}
        drafts_in_order = (name for name in dict.fromkeys(pair.drafts) if name in used)
        specs = [self.catalog.model(name) for name in (pair.target, *drafts_in_order)]
        here = specs[1:] if settings.target_at else specs
        ahead = _compile_ahead(here, device, settings)
        self._fetch(here)
        alike = _alike(pair, settings, *others)
        if not settings.target_at:
            _refuse_strangers(specs, alike)
        trained = self.trained_drafters(settings)
        offered = trained.offered(pair.drafts)
        for one in (settings, *others):
            refuse_unknown_drafts(one, offered, trained)
        used = {name for one in (settings, *others) for name in drafts_used(one, offered)}
        times = None if ahead.doing else self.times  # compiling is done once
        progress = ReadingProgress(self.emit, times, load_key(settings, specs), lambda: ahead.doing)
        files, besides = _trained_bytes(settings, trained), 0
        if settings.memory:
            besides = bytes_besides([model_state.locate(spec) for spec in specs[1:] if not spec.scripted], files)
        if len(devices) > 1 and not specs[0].scripted and not settings.target_at:
            threads = threads_of_rank(settings.threads, device, len(devices))
            torch.set_num_threads(threads)
            ranks = self._ranks([str(one) for one in devices], settings.device.partition("@")[2], threads, progress.say)
        try:
            if target is None:
                target = replace(self, ranks=ranks)._load(specs[0], device, settings, progress.say, besides=besides)
        except BaseException:
            if ranks is not None and ranks is not self.ranks:
                ranks.close()
            raise
        drafts = [self._load_draft(spec, device, settings, progress.say, target, alike) for spec in specs[1:]]
        drafts += self._trained_drafts(used, trained, pair.drafts, target, progress.say)
        vocabulary = self._vocabulary(target)
        device = target.model.device if target.kernels == LLAMA else device
        set_aside()
        memory, limited = limit_memory(settings, device, target, [one.loaded for one in drafts], files, self.streams)
        progress.ended()
        card = unused_card() if settings.device == "auto" and target.weight_bytes and not settings.target_at else ""
        loaded = LoadedPair(
            name=pair.name,
            target=target,
            vocabulary=vocabulary,
            device=device,
            precision=target.precision,
            notes=[note for one in (target, *(one.loaded for one in drafts)) for note in one.notes]
            + [*limited, *filter(None, (card, streaming_line(target.model)))],
            load_s=time.perf_counter() - began,
            trained=trained,
            datastores=Datastores(target.name, cache(partial(table_sha256, vocabulary))),
            memory=memory,
            named=pair.drafts,
        )
        return loaded.with_drafts(drafts).using(settings.threads)

    def add_drafts(self, loaded: LoadedPair, settings: Settings, *, fetches: bool) -> LoadedPair:
        """A loaded pair with the draft models that these settings use besides; what is loaded stays as it is.

        Raises:
            WeightsNotHere: they are not, and are not fetched.
            CombinationError: the memory that was stated is too little for them beside the context in use.
        """
        missing = loaded.missing_drafts(settings)
        if not missing:
            return loaded
        specs = [self.catalog.model(name) for name in missing if name in loaded.named]
        if not fetches:
            _refuse_missing(specs, settings)
        self._fetch(specs)
        pair = self.catalog.pair(settings.pair)
        alike = _alike(pair, settings)
        progress = ReadingProgress(self.emit, self.times, load_key(settings, specs))
        progress.say(missing[0])
        if not settings.target_at:
            _refuse_strangers([self.catalog.model(pair.target), *specs], alike)
        torch.set_num_threads(threads_for(settings.threads))
        say, target = progress.say, loaded.target
        try:
            drafts = [self._load_draft(spec, loaded.device, settings, say, target, alike) for spec in specs]
            drafts += self._trained_drafts(missing, loaded.trained, loaded.named, target, say)
        finally:
            loaded.using(settings.threads)
        set_aside()
        progress.ended()
        added = [one.loaded for one in drafts]
        memory = loaded.memory and limit_with_drafts(loaded.memory, settings, target, loaded.drafts, added)
        notes = [*loaded.notes, *(note for one in added for note in one.notes)]
        return replace(loaded, memory=memory, notes=notes).with_drafts(drafts).using(settings.threads)

    def load_target(self, name: str, settings: Settings) -> Loaded:
        """A model of the catalog alone, for those who draft for it elsewhere; fetched where it is not here.

        Raises:
            UsageError: there is no such model, or a device that it would be shared out over.
        """
        torch.set_num_threads(threads_for(settings.threads))
        spec, devices = self.catalog.model(name), choose_devices(settings.device)
        if len(devices) > 1:
            raise UsageError("a target for those who draft elsewhere runs on one device")
        ahead = _compile_ahead([spec], devices[0], settings)
        self._fetch([spec])
        progress = ReadingProgress(self.emit, None, load_key(settings, [spec]), lambda: ahead.doing)
        loaded = self._load(spec, devices[0], settings, progress.say)
        if devices[0].type != "cuda":
            return loaded
        limited = limit_memory(settings, devices[0], loaded, [])[1]
        return replace(loaded, notes=(*loaded.notes, *limited))

    def draft_names(self, pair: PairSpec) -> tuple[str, ...]:
        """The names of a pair's draft models, and of all trained ones, whatever target these were trained for."""
        methods = {name: one.method for name, one in found_drafters(self.catalog, methods_with_weights()).items()}
        methods |= {name: spec.method for name, spec in self.catalog.drafters.items()}
        trained = (name for name, method in methods.items() if method == DRAFT_MODEL)
        return tuple(dict.fromkeys((*pair.drafts, *trained)))

    def trained_drafters(self, settings: Settings) -> TrainedDrafters:
        """The trained drafters that fit the pair's target; those that the settings need are fetched first."""
        trained = self.drafters_here(settings)
        missing = drafters_to_fetch(settings, trained)
        for name in missing:
            fetching.fetch(self.catalog.drafters[name], self._report, self.cancelled)
        return self.drafters_here(settings) if missing else trained

    def drafters_here(self, settings: Settings) -> TrainedDrafters:
        """The trained drafters on this machine that fit the pair's target."""
        target = self.catalog.model(self.catalog.pair(settings.pair).target)

        def target_sha256() -> str:
            if settings.target_at:
                return NOWHERE if self.elsewhere is None else self.elsewhere.weights_sha256()
            return checksum.weights_sha256(target, self._report, self.cancelled)

        return drafters_fitting(self.catalog, target, methods_with_weights(), cache(target_sha256))

    def _load(
        self,
        spec: ModelSpec,
        device: torch.device,
        settings: Settings,
        say: Callable[[str], None],
        beside: Loaded | None = None,
        besides: int = 0,
    ) -> Loaded:
        """A target, after which comes what takes `besides` bytes, or the draft model of the target `beside` it."""
        guesses = beside is not None
        ranks = None if guesses else self.ranks
        if self.cancelled():
            raise Cancelled(f"stopped before {spec.name} was read")
        if spec.scripted:
            return load_scripted(spec, "draft" if guesses else "target")
        say(spec.name)
        path = model_state.locate(spec)
        limit = None
        if self.streams and not guesses and ranks is None:
            hashed = partial(checksum.weights_sha256, spec, self._report, self.cancelled)
            limit = weight_limit(settings, spec, path, device, besides, hashed)
        if limit is None:
            refuse_by_size(spec.name, path, settings)

        def say_part(what: str) -> None:
            say(f"{spec.name}: {what}")

        backend, cards = settings.backend, settings.device != "cpu"
        loaded = load_model(
            *(spec, path, device, settings.dtype, say_part, settings.kernels, guesses, beside, backend, cards, limit),
            ranks=ranks,
        )
        return loaded if guesses else with_shipped_head(loaded, path)

    def _ranks(self, devices: list[str], at: str, threads: int, say: Callable[[str], None]) -> Ranks:
        """A process for each of these devices: those that are there, or new ones, which join `at` an address."""
        from specchat.models.ranks.joining import join_launched, let_join
        from specchat.models.ranks.leading import Ranks
        from specchat.models.ranks.processes import start_here

        before = self.ranks
        if before is not None and not before.lost and (before.devices, before.at) == (tuple(devices), at):
            return before
        if (launched := launched_ranks()) > 1:
            if launched != len(devices) or at:
                raise UsageError(f"torchrun started {launched} ranks: device must name as many, or one for all of them")
            return Ranks(join_launched(), devices, death=lambda: "a rank that torchrun started has ended")
        if at:
            say(f"waiting for {len(devices) - 1} more to join at {at}")
            return let_join(devices, at, self.cancelled)
        say(f"starting {len(devices) - 1} more processes")
        return start_here(devices, threads, self.cancelled)

    def _load_draft(
        self,
        spec: ModelSpec,
        device: torch.device,
        settings: Settings,
        say: Callable[[str], None],
        target: Loaded,
        alike: Collection[str],
    ) -> LoadedDraft:
        """A draft model, with its tokens where they are not the target's; TokenizerMismatch for one in `alike`."""
        loaded = self._load(spec, device, settings, say, beside=target)
        if spec.name in alike:
            compare_tokenizers(target, loaded)
        elif differing_tokens(target, loaded):
            return LoadedDraft(loaded, self._vocabulary(loaded))
        return LoadedDraft(loaded)

    def _trained_drafts(
        self,
        used: Collection[str],
        trained: TrainedDrafters,
        named: Sequence[str],
        target: Loaded,
        say: Callable[[str], None],
    ) -> list[LoadedDraft]:
        """The trained draft models among those in use that the pair does not name."""
        found = []
        for name, one in trained.draft_models.items():
            if name in used and name not in named:
                say(name)
                lender = self.catalog.model(one.target) if name in trained.lent else None
                weights = None if lender is None else own_weights(lender.name, model_state.locate(lender))
                found.append(LoadedDraft(load_trained_draft(one, target, weights)))
        return found

    def _vocabulary(self, model: Loaded) -> Vocabulary:
        if model.tokenizer is None:
            return ScriptedVocabulary()
        return TransformersVocabulary(model.tokenizer, model.eos_ids)

    def _fetch(self, specs: Sequence[ModelSpec]) -> None:
        for spec in specs:
            if not spec.scripted:
                fetching.fetch(spec, self._report, self.cancelled)

    def _report(self, progress: Progress) -> None:
        p = progress
        self.emit(Loading(stage=p.stage, item=p.item, done=p.done, total=p.total, rate=p.rate))


def _trained_bytes(settings: Settings, trained: TrainedDrafters) -> int:
    """Bytes of the files of the trained drafters in use; what does not fit the target is refused later."""
    with suppress(CombinationError):
        used = trained_in_use(settings, trained)
        return sum(one.size for one in trained.fitting if one.name in used)
    return 0


def _compile_ahead(specs: list[ModelSpec], device: torch.device, settings: Settings) -> CompileAhead:
    """Begin to compile what these models will need on this device; nothing where no kernels of ours multiply."""
    whole_numbers = settings.dtype in ("auto", "int8", "int4") and settings.kernels != "torch"
    needed = device.type == "cpu" and whole_numbers and not all(spec.scripted for spec in specs)
    return CompileAhead() if needed else CompileAhead(list)


def _alike(pair: PairSpec, *used: Settings) -> frozenset[str]:
    """The names of the pair's draft models that must have the target's tokens with any of these settings."""
    first = pair.draft or ""
    return frozenset().union(*(choose_drafter(one).draft_models(first, same_tokens=True) for one in used))


def _refuse_missing(specs: Sequence[ModelSpec], settings: Settings) -> None:
    """WeightsNotHere, naming them, for models whose weights are not here."""
    states = {spec.name: model_state.state(spec) for spec in specs}
    missing = {
        name: max(0, (state.total_bytes or 0) - state.disk_bytes)
        for name, state in states.items()
        if state.kind in ("missing", "partial")
    }
    for name, left in missing.items():
        size = f" ({megabytes(left)})" if left else ""
        raise WeightsNotHere(
            f"drafter {settings.drafter!r} needs the draft model {name}{size}, which is not here; "
            f"run: specchat models pull {name}",
            missing,
        )


def _refuse_strangers(models: list[ModelSpec], alike: Collection[str]) -> None:
    """Refuse a draft model with other tokens by what the files say: reading the weights first would take long.

    Args:
        models: the target, then the draft models.

    Raises:
        TokenizerMismatch: with how many tokens differ, and one of them.
    """
    fit = check_pair(models, alike=alike)
    if fit.trouble == "tokens":
        raise TokenizerMismatch(
            f"{fit.refusals[0]}; nearest that works: drafter 'cross_vocabulary', or a draft model of the same family"
        )


def load_scripted(spec: ModelSpec, role: str) -> Loaded:
    """The scripted model, which has no weights, as target or as draft model."""
    memory, pace_s = _SCRIPTED[role]
    vocabulary = ScriptedVocabulary()
    model = ScriptedModel(vocabulary.size, scripted_says(vocabulary, memory), pace_s=pace_s)
    return Loaded(spec.name, model, None, vocabulary.eos_ids, 0, "float32")
