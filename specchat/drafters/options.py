"""Options of the drafters, apart from their code so that listing them imports no torch."""

from __future__ import annotations

from dataclasses import dataclass

from specchat.registry import option


@dataclass(frozen=True)
class PromptLookupOptions:
    """Options of `prompt_lookup`."""

    max_ngram: int = option(4, "longest run of last tokens to look for", unit="tokens", minimum=1, maximum=32)
    min_ngram: int = option(1, "shortest run of last tokens to look for", unit="tokens", minimum=1, maximum=32)


@dataclass(frozen=True)
class DraftModelOptions:
    """Options of `draft_model`."""

    drawing: str = option(
        "auto",
        "how children are chosen: the most likely (top), or with the target's own noise (coupled); "
        "auto is coupled when the temperature is above 0",
        choices=("auto", "top", "coupled"),
    )
