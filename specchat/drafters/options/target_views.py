"""Options of the drafters that are the target itself, with less work."""

from __future__ import annotations

from dataclasses import dataclass

from specchat.drafters.members import Member, parse_members
from specchat.errors import UsageError, short
from specchat.registry import option


@dataclass(frozen=True)
class LayerSkipOptions:
    """Options of `layer_skip`."""

    ratio: float = option(0.3, "share of all attention and MLP sub-layers that is left out", minimum=0.0, maximum=1.0)
    sure: float = option(
        0.8,
        "a guess gets no children if the likeliest token in its place is less likely than this",
        minimum=0.0,
        maximum=1.0,
    )
    window: int = option(
        32, "tokens of the reply on which sets of sub-layers are tried", unit="tokens", minimum=4, maximum=256
    )


@dataclass(frozen=True)
class EarlyExitOptions:
    """Options of `early_exit`."""

    exits: int = option(
        8, "layers that are compared as exits, at equal distances", unit="layers", minimum=1, maximum=64
    )
    decay: float = option(
        0.97, "factor on the weight of older tokens in an exit's record, per newer token", minimum=0.5, maximum=0.999
    )


@dataclass(frozen=True)
class SparseContextOptions:
    """Options of `sparse_context`."""

    budget: int = option(
        1024, "rows of its cache that the target drafts with", unit="tokens", minimum=32, maximum=1_000_000
    )
    refresh: int = option(
        64, "tokens after which the part of the text is chosen again", unit="tokens", minimum=1, maximum=65536
    )
    below: str = option(
        "token_recycling", "the drafter for the target with the part, with options in parentheses; or none"
    )
    ahead: int = option(
        3, "guesses of that drafter in one pass of the target with the part", unit="tokens", minimum=0, maximum=64
    )

    def __post_init__(self) -> None:
        if len(self.members) != 1:
            raise UsageError(f"sparse_context.below = {short(self.below)} must be one drafter, such as token_recycling")

    @property
    def members(self) -> tuple[Member, ...]:
        """The drafter of the inner engine."""
        return parse_members("sparse_context.below", self.below)


@dataclass(frozen=True)
class PrunedOptions:
    """Options of `pruned`."""

    ratio: float = option(
        0.2, "share of the heads and MLP channels of every layer that is left out", minimum=0.0, maximum=0.9
    )
    samples: int = option(8, "texts of 64 tokens on which importance is measured", minimum=1, maximum=64)
