"""Options of the acceptance rules, apart from their code so that listing them imports no torch."""

from __future__ import annotations

from dataclasses import dataclass

from specchat.errors import UsageError
from specchat.registry import fraction, option


@dataclass(frozen=True)
class TypicalOptions:
    epsilon: float = fraction(0.09, "a guess more likely than this is accepted, however decided the target is")
    delta: float = option(0.3, "a guess more likely than this times exp(−entropy) is accepted", minimum=0.0)


@dataclass(frozen=True)
class LenientOptions:
    lenience: float = option(
        0.5, "factor on the draft's probability of a draw; 1: as `multi_step`", minimum=0.01, maximum=1.0
    )


@dataclass(frozen=True)
class RollbackOptions:
    distance: float = option(
        3.0,
        "a guess is accepted if the target gives it a negative log-probability up to this; 0: none does",
        minimum=0.0,
    )


@dataclass(frozen=True)
class TransferOptions:
    eta: float = option(
        10.0, "how far the target's distribution is moved towards the draft's; 0: as `multi_step`", minimum=0.0
    )


@dataclass(frozen=True)
class NestOptions:
    alpha: float = fraction(0.1, "ratio of distances at which target and copies weigh the same")
    tau: float = option(0.1, "how softly the weight changes around alpha", minimum=0.001, maximum=10.0)
    beta: float = fraction(0.5, "copies bring their spans where the target weighs less than this")
    gamma: float = option(
        0.05,
        "a span goes on while p(w) is at least half this times max p; 2: only the likeliest",
        minimum=0.0,
        maximum=2.0,
    )


@dataclass(frozen=True)
class JudgeOptions:
    weights: str = option("", "which trained judge to use, by name; if empty, the newest for the target")
    threshold: float = fraction(
        0.5, "a guess that the judge finds likelier right than this is accepted; 1: as `follow`"
    )


@dataclass(frozen=True)
class FairOptions:
    swap: str = option(
        "he:she,him:her,man:woman,men:women,boy:girl,father:mother,son:daughter,brother:sister,husband:wife",
        "terms of the prompt that take each other's place",
    )
    share: float = fraction(0.2, "a token is considered from this share of the likeliest one's probability on")

    def __post_init__(self) -> None:
        self.pairs()

    def pairs(self) -> tuple[tuple[str, str], ...]:
        """The terms as pairs; refuses a term without a partner."""
        pairs = tuple(tuple(part.strip() for part in word.split(":")) for word in self.swap.split(",") if word.strip())
        if not all(len(pair) == 2 and all(pair) for pair in pairs):
            raise UsageError(f"fair.swap = {self.swap!r} must be pairs of terms, such as he:she,man:woman")
        return tuple((pair[0], pair[1]) for pair in pairs)
