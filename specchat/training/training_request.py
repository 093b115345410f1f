"""What is to be trained, and where its parts lie on disk."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from specchat.config import cache_dir, data_dir, private_dir
from specchat.config.toml_checks import NAME
from specchat.errors import TrainingError, UsageError, nearest, short
from specchat.training.prompt_sources import prompts_of, prompts_of_chats
from specchat.training.recipes import RECIPES

SELF = "self"
"""The target writes the prompts itself."""

CHATS = "chats"
"""The user's own messages."""

FEWEST_TOKENS = 5200
"""Some 40 texts of the longest replies: fewer cannot be told from chance."""


@dataclass(frozen=True)
class TrainingRequest:
    """A drafter to be trained.

    Args:
        pair: whose target it drafts for.
        drafter: a method with a network.
        prompts: `self`, `chats`, or a file.
        tokens: of replies that are written and learnt from.
        hours: that learning may take; 0 for as long as it helps.
        name: of the trained drafter.
        seed: of everything that is drawn.
        resume: whether a training of this name is gone on with.
    """

    pair: str
    drafter: str
    prompts: str
    tokens: int
    hours: float
    name: str
    seed: int = 0
    resume: bool = False

    def check(self) -> None:
        """Refuse what cannot be, before anything is loaded.

        Raises:
            UsageError: with the nearest that can be.
        """
        if not NAME.fullmatch(self.name):
            raise UsageError(f"--name {short(self.name)} is no name: letters, digits, '.', '_' and '-'")
        if self.drafter not in RECIPES:
            raise UsageError(f"--drafter {self.drafter!r} is none that is trained{nearest(self.drafter, RECIPES)}")
        if self.tokens < FEWEST_TOKENS:
            raise UsageError(f"--tokens {self.tokens} is too few to learn from; at least {FEWEST_TOKENS}")
        if not 0 <= self.hours < 10_000:
            raise UsageError(f"--hours {self.hours:g} must be 0 (as long as it helps) or more, and below 10000")
        self.given_prompts()

    def given_prompts(self) -> list[str] | None:
        """The prompts of the chats or the file, or None where the target writes them."""
        if self.prompts == SELF:
            return None
        if self.prompts == CHATS:
            return prompts_of_chats()
        file = Path(self.prompts).expanduser()
        if not file.is_file():
            raise UsageError(f"--prompts {self.prompts!r} is neither {SELF!r}, {CHATS!r} nor a file")
        return prompts_of(file)


@dataclass(frozen=True)
class Places:
    """Where the data of a target and one of its trainings lie. Trainings from the same prompts share their data."""

    data: Path
    run: Path
    drafter: Path

    @classmethod
    def of(cls, request: TrainingRequest, target: str, checksum: str) -> Places:
        """The folders, made on demand.

        Raises:
            TrainingError: a drafter of this name is there already, or a training that is not to be gone on with.
        """
        source = request.prompts
        if source not in (SELF, CHATS):
            prompts = request.given_prompts() or []
            source = hashlib.blake2b("\n".join(prompts).encode(), digest_size=6).hexdigest()
        data = cache_dir() / "training" / f"{target}-{checksum[:12]}" / f"{source}-{request.seed}"
        places = cls(data, data / "runs" / request.name, data_dir() / "drafters" / request.name)
        if not request.resume:
            for there, what in ((places.drafter, "a trained drafter"), (places.run, "an unfinished training")):
                if there.exists():
                    way = "--resume goes on with it" if there == places.run else f"{there} holds it"
                    raise TrainingError(
                        f"{what} called {request.name!r} is there already: {way}; or choose another --name"
                    )
        for folder in (places.states, places.run):
            try:
                private_dir(folder)
            except OSError as error:
                raise TrainingError(f"{folder} cannot be made: {error.strerror or error}") from None
        return places

    @property
    def texts(self) -> Path:
        return self.data / "texts.jsonl"

    @property
    def states(self) -> Path:
        return self.data / "states"
