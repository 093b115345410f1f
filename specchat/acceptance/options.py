"""Options of the acceptance rules, apart from their code so that listing them imports no torch."""

from __future__ import annotations

from dataclasses import dataclass

from specchat.registry import option


@dataclass(frozen=True)
class TypicalOptions:
    """Options of `typical`."""

    epsilon: float = option(
        0.3, "a guess more likely than this stands, however decided the target is", minimum=0.0, maximum=1.0
    )
    delta: float = option(0.09, "a guess more likely than this times exp(−entropy) stands", minimum=0.0)


@dataclass(frozen=True)
class LenientOptions:
    """Options of `lenient`."""

    lenience: float = option(
        0.5, "factor on the draft's probability of a draw; 1: as `multi_step`", minimum=0.01, maximum=1.0
    )


@dataclass(frozen=True)
class RollbackOptions:
    """Options of `rollback`."""

    distance: float = option(
        3.0, "a guess stands if the target gives it a negative log-probability up to this; 0: none does", minimum=0.0
    )


@dataclass(frozen=True)
class TransferOptions:
    """Options of `transfer`."""

    eta: float = option(10.0, "how far the target's law is moved towards the draft's; 0: as `multi_step`", minimum=0.0)
