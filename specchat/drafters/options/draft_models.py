"""Options of the drafters that run a smaller model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from specchat.registry import option


def which_draft_model() -> Any:
    """The option `model`, which every method that uses a draft model has."""
    return option("", "which of the pair's draft models to use, by name; if empty, the first")


@dataclass(frozen=True)
class DraftModelOptions:
    """Options of `draft_model`."""

    drawing: str = option(
        "auto",
        "how children are chosen: the most likely (top), or with the target's own noise (coupled); "
        "auto is coupled when the temperature is above 0",
        choices=("auto", "top", "coupled"),
    )
    model: str = which_draft_model()
    trim: int = option(
        65536,
        "how many of the target's most used tokens can be guessed, besides those of the text: a smaller head is "
        "quicker; 0 for all",
        unit="tokens",
        minimum=0,
    )


@dataclass(frozen=True)
class CrossVocabularyOptions:
    """Options of `cross_vocabulary`."""

    model: str = which_draft_model()


@dataclass(frozen=True)
class RetrievedContextOptions:
    """Options of `retrieved_context`."""

    budget: int = option(
        1024, "tokens of a text that the draft model reads", unit="tokens", minimum=32, maximum=1_000_000
    )
    chunk: int = option(64, "tokens that are retrieved together", unit="tokens", minimum=4, maximum=4096)
    refresh: int = option(
        256, "tokens after which the part of the text is chosen again", unit="tokens", minimum=1, maximum=65536
    )
    model: str = which_draft_model()
