"""Options of the drafters that look up what a text had before."""

from __future__ import annotations

from dataclasses import dataclass

from specchat.errors import UsageError
from specchat.registry import option


@dataclass(frozen=True)
class PromptLookupOptions:
    """Options of `prompt_lookup`."""

    max_ngram: int = option(4, "longest run of last tokens to look for", unit="tokens", minimum=1, maximum=32)
    min_ngram: int = option(1, "shortest run of last tokens to look for", unit="tokens", minimum=1, maximum=32)

    def __post_init__(self) -> None:
        if self.min_ngram > self.max_ngram:
            raise UsageError(
                f"prompt_lookup.min_ngram = {self.min_ngram} is above prompt_lookup.max_ngram = {self.max_ngram}"
            )


@dataclass(frozen=True)
class TokenRecyclingOptions:
    """Options of `token_recycling`."""

    k: int = option(8, "successors kept for every token", unit="tokens", minimum=1, maximum=64)
    remember: bool = option(True, "keep the successors when another text begins")


@dataclass(frozen=True)
class SuffixOptions:
    """Options of `suffix`."""

    depth: int = option(
        64, "longest run looked at, match and continuation together", unit="tokens", minimum=2, maximum=256
    )
    factor: float = option(1.0, "tokens drafted per token of the match", minimum=0.0, maximum=16.0)
    offset: int = option(1, "tokens drafted on top of that", unit="tokens", minimum=0, maximum=64)
    min_match: int = option(
        1,
        "shortest run of last tokens that is drafted from, as prompt_lookup.min_ngram",
        unit="tokens",
        minimum=1,
        maximum=255,
    )
    min_probability: float = option(
        0.1, "continuations less likely than this are not drafted", minimum=0.001, maximum=1.0
    )
    remember: int = option(65536, "tokens of past replies kept; the oldest replies go first", unit="tokens", minimum=0)

    def limit(self, match: int) -> int:
        """How many tokens a match of this length may draft."""
        return int(self.factor * match) + self.offset if match >= self.min_match else 0


@dataclass(frozen=True)
class DatastoreOptions:
    """Options of `datastore`."""

    store: str = option("", "which datastore, by name; if empty, the newest with the target's tokens")
    longest: int = option(8, "longest run of last tokens to look for", unit="tokens", minimum=1, maximum=32)
