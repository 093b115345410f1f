"""The request for a training, and the folders of its parts."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from specchat.config import cache_dir, own_drafters_dir, private_dir
from specchat.config.directories import expanded
from specchat.config.trained_drafters import free_name
from specchat.errors import TrainingError, os_errors_as
from specchat.training.limits import (
    CHATS,
    SELF,
    depths_of,
    refuse_ensemble,
    refuse_hiding,
    refuse_impossible,
    refuse_plain,
    refuse_replacing_start,
    refuse_unknown_form,
    refuse_unknown_loss,
    refuse_unknown_texts,
)
from specchat.training.prompts import prompts_of, prompts_of_chats

_RUNS = "runs"


@dataclass(frozen=True)
class TrainingRequest:
    """A drafter to be trained.

    Args:
        prompts: `self`, `chats`, or a file.
        hours: that learning may take; 0 for as long as it helps.
        start: the name of a trained drafter with whose weights it begins; empty for random ones.
        loss: how its law is brought to the target's, where that can be chosen; empty for the first of `LOSSES`.
        reference: the name of a trained drafter that decides which places are learnt from; empty for all of them.
        select: how it decides, or which guesses of chains are learnt; empty for the first of `SELECTIONS` or
            `CHAIN_SELECTIONS`.
        plain: a file of plain text that a draft model learns first; empty for none.
        texts: who writes what it learns from; empty for the first of `TEXTS`.
        ensemble: so many embeddings of masks stand for one place.
        depths: numbers of layers of a draft model that each learn to guess by themselves, with commas; empty for all
            of its layers alone.
        form: of `eagle`; empty for the first of `FORMS`.
    """

    pair: str
    drafter: str
    prompts: str
    tokens: int
    hours: float
    name: str
    seed: int = 0
    resume: bool = False
    start: str = ""
    loss: str = ""
    reference: str = ""
    select: str = ""
    texts: str = ""
    ensemble: int = 1
    plain: str = ""
    depths: str = ""
    form: str = ""

    def check(self) -> None:
        """Refuse what cannot be, before anything is loaded.

        Raises:
            UsageError: with the nearest that can be.
            TrainingError: a drafter of this name is there already.
        """
        refuse_impossible(self.drafter, self.prompts, self.tokens, self.hours, self.name)
        refuse_unknown_loss(self.drafter, self.loss, self.reference, self.select, self.start)
        refuse_unknown_texts(self.drafter, self.texts)
        refuse_plain(self.drafter, self.plain, self.start)
        refuse_ensemble(self.drafter, self.ensemble)
        depths_of(self.drafter, self.depths)
        refuse_unknown_form(self.drafter, self.form)
        refuse_replacing_start(self.name, self.start)
        if not (self.resume and is_begun(self.name)):
            refuse_hiding(self.name)
        if not self.resume and self.folder.exists():
            free = free_name(self.name, lambda name: (own_drafters_dir() / name).exists() or is_begun(name))
            raise TrainingError(
                f"a trained drafter called {self.name!r} is there already, in {self.folder}; {free!r} is free"
            )
        self.given_prompts()

    @property
    def folder(self) -> Path:
        return own_drafters_dir() / self.name

    def given_prompts(self) -> list[str] | None:
        """The prompts of the chats or the file, or None where the target writes them."""
        if self.prompts == SELF:
            return None
        if self.prompts == CHATS:
            return prompts_of_chats()
        return prompts_of(expanded(self.prompts, "--prompts"))


def is_begun(name: str) -> bool:
    """Whether a training of this name was begun here, for any target."""
    return (own_drafters_dir() / name).exists() or any(_trainings_dir().glob(f"*/*/{_RUNS}/{name}"))


def _trainings_dir() -> Path:
    return cache_dir() / "training"


@dataclass(frozen=True)
class Places:
    """Where the data of a target and one of its trainings lie. Trainings from the same prompts share their data."""

    data: Path
    run: Path
    drafter: Path

    @classmethod
    def of(cls, request: TrainingRequest, target: str, checksum: str) -> Places:
        """The folders, made on demand; TrainingError if there is such a training and it is not to be gone on with."""
        source = request.prompts
        if source not in (SELF, CHATS):
            prompts = request.given_prompts() or []
            source = hashlib.blake2b("\n".join(prompts).encode(), digest_size=6).hexdigest()
        data = _trainings_dir() / f"{target}-{checksum[:12]}" / f"{source}-{request.seed}"
        places = cls(data, data / _RUNS / request.name, request.folder)
        if places.run.exists() and not request.resume:
            raise TrainingError(
                f"a training called {request.name!r} is there already: --resume goes on with it; "
                "or choose another --name"
            )
        for folder in (places.states, places.run):
            with os_errors_as(TrainingError, f"{folder} cannot be made"):
                private_dir(folder)
        return places

    @property
    def texts(self) -> Path:
        return self.data / "texts.jsonl"

    @property
    def written(self) -> Path:
        """What a draft model writes itself."""
        return self.run / "written"

    @property
    def states(self) -> Path:
        return self.data / "states"
