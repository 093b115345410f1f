"""A pair in memory. Apart from what loads one by name, so that code with models of its own needs no protocol."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from specchat.config.trained_drafters import NO_TRAINED, TrainedDrafters
from specchat.core.memory import MemoryLimit
from specchat.decoding.vocabulary import Vocabulary
from specchat.drafters.parts import PairResources
from specchat.models.machine import threads_for
from specchat.models.model_loading import Loaded
from specchat.models.own.decoder import Decoder

if TYPE_CHECKING:
    from specchat.config.datastore_files import Datastores


@dataclass(frozen=True)
class LoadedPair:
    """A target, its draft model if it has one, and how they were loaded.

    Args:
        draft_vocabulary: the draft model's tokens where they are not the target's.
    """

    name: str
    target: Loaded
    draft: Loaded | None
    vocabulary: Vocabulary
    device: torch.device
    precision: str
    notes: list[str]
    load_s: float
    threads: int = 1
    trained: TrainedDrafters = NO_TRAINED
    draft_vocabulary: Vocabulary | None = None
    datastores: Datastores | None = None
    memory: MemoryLimit | None = None

    def using(self, threads: int) -> LoadedPair:
        """The same models with so many threads; 0 chooses.

        Native kernels bring threads of their own. torch then gets one: what is left to it is small, and waking a
        second thread takes longer than the work (0.3 ms a round).
        """
        threads = threads_for(threads)
        for loaded in (self.target, self.draft):
            if loaded is not None and isinstance(loaded.model, Decoder):
                loaded.model.network.threads = threads
        torch.set_num_threads(1 if self.target.kernels == "native" else threads)
        return dataclasses.replace(self, threads=threads)

    @property
    def resources(self) -> PairResources:
        """What drafters may be made from besides the models."""
        other = (self.draft_vocabulary or self.vocabulary) if self.draft else None
        return PairResources(
            self.vocabulary,
            other,
            self.trained,
            self.datastores,
            memory=self.memory,
            prunable=self.target.prunable,
        )

    @property
    def key(self) -> str:
        """What the plain speed depends on."""
        names = f"{self.target.name}+{self.draft.name}" if self.draft else self.target.name
        return f"{names}|{self.device}|{self.precision}|{self.target.kernels}|{self.threads}"

    @property
    def exact(self) -> bool:
        """Whether a tree's pass gives the bits of plain decoding, so that texts must be equal, ties included."""
        return self.precision == "float32" or self.target.kernels == "native"
