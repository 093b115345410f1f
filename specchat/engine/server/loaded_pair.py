"""A pair in memory. Apart from what loads one by name, so that code with models of its own needs no protocol."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch

from specchat.config.trained_drafters import NO_TRAINED, TrainedDrafters
from specchat.core.memory import MemoryLimit
from specchat.core.seams import TargetElsewhere
from specchat.decoding.profiling import CONTEXT_TOKENS
from specchat.decoding.vocabulary import Vocabulary
from specchat.drafters.choice import drafts_used
from specchat.drafters.parts import FurtherDraft, PairResources
from specchat.models.backends.llama_cpp import LLAMA, LlamaCppModel
from specchat.models.decoder.decoder import Decoder
from specchat.models.decoder.recorded_network import GraphNetwork
from specchat.models.draft_heads.masks import mask_rows
from specchat.models.draft_heads.specdiff import denoiser
from specchat.models.machine import threads_of_rank
from specchat.models.model_loading import Loaded, streaming_line, streaming_network
from specchat.settings import Settings
from specchat.training.adapted_draft import adapted_draft
from specchat.training.learning_network import LearningNetwork

if TYPE_CHECKING:
    from specchat.config.datastore_files import Datastores  # not where a GPU is measured: msgspec may be missing there


@dataclass(frozen=True)
class LoadedDraft:
    """A draft model of a pair."""

    loaded: Loaded
    vocabulary: Vocabulary | None = None  # its tokens where they are not the target's


@dataclass(frozen=True)
class LoadedPair:
    """A target, the draft models that its drafter uses if it uses any, and how they were loaded.

    Args:
        loaded_drafts: the draft models, as far as they are used, in the order of `offered`.
        named: the names of the draft models that models.toml gives the pair, loaded or not.
    """

    name: str
    target: Loaded
    vocabulary: Vocabulary
    device: torch.device
    precision: str
    notes: list[str]
    load_s: float
    threads: int = 1
    trained: TrainedDrafters = NO_TRAINED
    datastores: Datastores | None = None
    memory: MemoryLimit | None = None
    loaded_drafts: tuple[LoadedDraft, ...] = ()
    named: tuple[str, ...] = ()

    @property
    def offered(self) -> tuple[str, ...]:
        """The names of all its draft models, those that were trained for its target included, loaded or not."""
        return self.trained.offered(self.named)

    def using(self, threads: int) -> LoadedPair:
        """The same models with so many threads; 0 chooses.

        Native kernels and llama.cpp bring threads of their own. torch then gets one: what is left to it is small, and
        waking a second thread takes longer than the work (0.3 ms a round).
        """
        threads = threads_of_rank(threads, self.device, 1 if self.target.ranks is None else self.target.ranks.size)
        for loaded in (self.target, *self.drafts):
            if isinstance(loaded.model, Decoder):
                loaded.model.network.threads = threads
            elif isinstance(loaded.model, LlamaCppModel):
                loaded.model.threads = threads
        torch.set_num_threads(1 if self.target.kernels in ("native", LLAMA) else threads)
        return dataclasses.replace(self, threads=threads)

    def missing_drafts(self, settings: Settings) -> tuple[str, ...]:
        """The names of the draft models that these settings use besides those that are loaded."""
        here = {draft.name for draft in self.drafts}
        return tuple(name for name in drafts_used(settings, self.offered) if name not in here)

    def unused_drafts(self, settings: Settings) -> tuple[Loaded, ...]:
        """The draft models that are loaded and that these settings do not use."""
        used = drafts_used(settings, self.offered)
        return tuple(draft for draft in self.drafts if draft.name not in used)

    def drafts_in_use(self, settings: Settings) -> str:
        """The names of the draft models that these settings use as one text; empty where they use none."""
        return " + ".join(drafts_used(settings, self.offered))

    def with_drafts(self, drafts: Sequence[LoadedDraft]) -> LoadedPair:
        """The same with these draft models besides its own, all of them in the pair's order."""
        ordered = sorted((*self.loaded_drafts, *drafts), key=lambda one: self.offered.index(one.loaded.name))
        return dataclasses.replace(self, loaded_drafts=tuple(ordered))

    def without_drafts(self, names: Collection[str]) -> LoadedPair:
        """The same without the draft models of these names."""
        kept = tuple(one for one in self.loaded_drafts if one.loaded.name not in names)
        return dataclasses.replace(self, loaded_drafts=kept)

    @property
    def drafts(self) -> tuple[Loaded, ...]:
        return tuple(one.loaded for one in self.loaded_drafts)

    @property
    def draft(self) -> Loaded | None:
        """The first draft model."""
        return self.drafts[0] if self.drafts else None

    @property
    def draft_names(self) -> str | None:
        """The names of the draft models that are loaded as one text; None where there are none."""
        return " + ".join(draft.name for draft in self.drafts) or None

    @property
    def slower(self) -> list[str]:
        """What became slower while models ran: passes that are no longer recorded, or not compiled, and why."""
        return [
            f"{loaded.name} is slower than it could be: {network.trouble}"
            for loaded in (self.target, *self.drafts)
            if isinstance(loaded.model, Decoder) and isinstance(network := loaded.model.network, GraphNetwork)
            if network.trouble
        ]

    @property
    def resources(self) -> PairResources:
        """Vocabularies, trained drafters, datastores and further draft models that drafters may be made from."""
        drafts = [(one.loaded, one.vocabulary or self.vocabulary) for one in self.loaded_drafts]
        return PairResources(
            self.vocabulary,
            drafts[0][1] if drafts else None,
            drafts[0][0].name if drafts else "",
            further={loaded.name: FurtherDraft(loaded.model, vocabulary) for loaded, vocabulary in drafts[1:]},
            trained=self.trained,
            datastores=self.datastores,
            memory=self.memory,
            prunable=self.target.prunable,
            shipped=self.target.shipped,
            make_network=LearningNetwork,
            make_learning=adapted_draft,
            draft_sha256=partial(_draft_sha256, self.named, self.trained),
            make_masks=mask_rows,
            make_denoiser=denoiser,
        )

    @property
    def key(self) -> str:
        """Models, device, number format, kernels, threads and layers on the disk: the plain speed depends on them."""
        names = "+".join(loaded.name for loaded in (self.target, *self.drafts))
        key = f"{names}|{self.device}|{self.precision}|{self.target.kernels}|{self.threads}"
        return f"{key}|{self.streaming}" if self.streaming else key

    @property
    def streaming(self) -> str:
        """Which of the target's layers stay in memory, and how much is read each pass; empty where all stay."""
        return streaming_line(self.target.model)

    def room_for_rows(self, rows: int) -> bool:
        """Whether memory has room for a pass of so many rows behind a short context."""
        if self.memory is None:
            return True
        model, limit = self.target.model, self.memory
        taken = model.cache_bytes(CONTEXT_TOKENS + rows) + model.pass_bytes(rows, CONTEXT_TOKENS)
        return limit.base_bytes + taken <= limit.bytes

    @property
    def unreadable(self) -> bool:
        """Whether layers of the target could not be read any more, or ranks were lost: it has to be loaded anew."""
        if self.target.ranks is not None and self.target.ranks.lost:
            return True
        network = streaming_network(self.target.model)
        return network is not None and network.streamed is not None and network.streamed.failed

    def close_processes(self, after: LoadedPair | None = None) -> None:
        """End the other processes that hold the target, or parts of it, but those that the pair after it uses too."""
        target, kept = self.target, None if after is None else after.target
        if target.ranks is not None and (kept is None or kept.ranks is not target.ranks):
            target.ranks.close()
        if isinstance(target.model, TargetElsewhere) and (kept is None or kept.model is not target.model):
            target.model.close()

    @property
    def exact(self) -> bool:
        """Whether a tree's pass gives the bits of plain decoding, so that texts must be equal, ties included. Of
        llama.cpp that is found out by a few passes."""
        if self.target.kernels == LLAMA:
            return isinstance(self.target.model, LlamaCppModel) and self.target.model.rows_alike
        return self.precision == "float32" or self.target.kernels == "native"

    @property
    def near_ties(self) -> str:
        """What has the near-ties that may part a text from plain decoding's: a number format, or llama.cpp; empty where
        the pair is exact."""
        return "" if self.exact else LLAMA if self.target.kernels == LLAMA else self.precision


def _draft_sha256(named: Collection[str], trained: TrainedDrafters, name: str) -> str:
    """The checksum of the weights of the draft model with this name. It holds no pair, so that draft models can go."""
    from specchat.config import load_catalog
    from specchat.models.hub import checksum

    if name in named:
        return checksum.weights_sha256(load_catalog().model(name))
    return trained.draft_models[name].sha256
