"""Which head outputs a pass computes at once; the rest can still be computed later."""

from __future__ import annotations

from typing import Final

from specchat.core.record import record
from specchat.core.sampling import Sampling


@record
class HeadNeeds:
    """Which head outputs are needed besides the likeliest token of each row.

    A pass may compute only these. Other outputs are computed when they are asked for, from states that were kept, with
    the same bits: this only takes longer.

    Args:
        likeliest: more than one of the likeliest tokens.
        logits: logits, or log-probabilities.
    """

    likeliest: bool
    logits: bool

    def __or__(self, other: HeadNeeds) -> HeadNeeds:
        """What either of two needs."""
        if other is self or other is FIRST:
            return self
        return other if self is FIRST else _BY_PARTS[self.likeliest or other.likeliest, self.logits or other.logits]


FIRST: Final = HeadNeeds(likeliest=False, logits=False)
LIKELIEST: Final = HeadNeeds(likeliest=True, logits=False)
LOGITS: Final = HeadNeeds(likeliest=False, logits=True)
EVERYTHING: Final = HeadNeeds(likeliest=True, logits=True)

_BY_PARTS = {(needs.likeliest, needs.logits): needs for needs in (FIRST, LIKELIEST, LOGITS, EVERYTHING)}


def always_logits(sampling: Sampling) -> HeadNeeds:
    """What a rule needs that weighs probabilities however the target samples."""
    return LOGITS
