"""Options of the controllers, apart from their code so that listing them imports no torch."""

from __future__ import annotations

from dataclasses import dataclass

from specchat.registry import option


@dataclass(frozen=True)
class GoodputOptions:
    memory: int = option(32, "rounds over which acceptance is averaged", unit="rounds", minimum=4, maximum=1024)
    probe: int = option(16, "plain rounds before the drafter is tried again", unit="rounds", minimum=2, maximum=1024)


@dataclass(frozen=True)
class SearchOptions:
    share: float = option(0.25, "share of the time that a drafter may spend on searching", minimum=0.0, maximum=1.0)


@dataclass(frozen=True)
class CostModelOptions:
    memory: int = option(32, "rounds over which times and ranks are averaged", unit="rounds", minimum=4, maximum=1024)
    probe: int = option(16, "plain rounds before a guess is tried again", unit="rounds", minimum=2, maximum=1024)
