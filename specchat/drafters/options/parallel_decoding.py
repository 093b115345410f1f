"""Options of the drafters whose guesses are worked out in rows of the target's own pass."""

from __future__ import annotations

from dataclasses import dataclass

from specchat.registry import option


@dataclass(frozen=True)
class JacobiOptions:
    """Options of `jacobi`."""

    window: int = option(
        4, "places ahead that are guessed in parallel, each a row of every pass", unit="tokens", minimum=1, maximum=64
    )


@dataclass(frozen=True)
class LookaheadOptions:
    """Options of `lookahead`."""

    window: int = option(5, "places ahead that are guessed in parallel", unit="tokens", minimum=2, maximum=64)
    ngram: int = option(
        3,
        "length of an n-gram; a pass gets window − 1 + window × (ngram − 2) more rows",
        unit="tokens",
        minimum=2,
        maximum=16,
    )
    guesses: int = option(8, "continuations kept for the beginning of an n-gram", minimum=1, maximum=64)
    remember: bool = option(True, "keep the n-grams when another text begins")
