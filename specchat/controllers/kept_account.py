"""The part of drafting's account that is kept between engines, checked field by field when it is read.

The account itself is another module: it also runs where a GPU is measured and msgspec is missing.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

ROWS = (1, 2, 4)
"""Rows of the passes whose times are kept."""

_Share = Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]
_Seconds = Annotated[float, msgspec.Meta(ge=0.0, le=3600.0)]
_PassSeconds = Annotated[float, msgspec.Meta(gt=0.0, le=3600.0)]
_Count = Annotated[float, msgspec.Meta(ge=0.0, le=65536.0)]
_Balance = Annotated[float, msgspec.Meta(ge=0.0, le=100.0)]


class KeptStatistics(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The kept part of `RoundStatistics`: means, and lines as their values at 0 and their slopes."""

    accepted: Annotated[tuple[_Share, ...], msgspec.Meta(max_length=4096)]
    rate: _Share
    calibration: _Count
    nodes_per_level: _Count
    steps: _Count
    steps_per_level: _Count
    tokens: _Count
    nodes: _Count
    other_s: _Seconds
    plain_other_s: _Seconds
    draft: tuple[_Seconds, _Seconds]
    extra_rows: tuple[_Count, _Count]
    passes: bool
    gives_probabilities: bool
    rounds: Annotated[int, msgspec.Meta(ge=0, le=1 << 40)]


class KeptAccount(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The kept part of `Goodput`: of rounds in which models might run, and of the others."""

    verify: Annotated[tuple[_PassSeconds, ...], msgspec.Meta(min_length=len(ROWS), max_length=len(ROWS))]
    statistics: KeptStatistics
    free: KeptStatistics
    balance: _Balance
    free_balance: _Balance

    def encoded(self) -> bytes:
        return msgspec.json.encode(self)

    @staticmethod
    def decoded(state: bytes) -> KeptAccount:
        """ValueError where it is no such account, or out of bounds."""
        return msgspec.json.decode(state, type=KeptAccount)
