"""Where two replies to one prompt first differ, and whether rounding explains it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specchat.core.sampling import Sampling
from specchat.core.seams import Model
from specchat.decoding.teacher_forcing import (
    Judge,
    Margin,
    allowed_gap,
    disturbance,
    first_difference,
    forced,
    read_after,
)
from specchat.errors import UsageError

_CALIBRATION_TOKENS = 48
_CALIBRATION_ROWS = (2, 8, 17)


@dataclass(frozen=True)
class FirstDivergence:
    """The first place at which a reply is not plain decoding's.

    Args:
        allowed: the margin up to which two tokens count as tied: what passes of different sizes differ by.
    """

    margin: Margin
    allowed: float

    @property
    def tie(self) -> bool:
        """Whether rounding explains that the two replies differ here."""
        return self.margin.gap <= self.allowed


class Comparer:
    """Compares replies with plain's over one loaded target. Measures what counts as a tie when first needed.

    Args:
        exact: no margin is excused: in float32 the text must be the same.
    """

    def __init__(self, target: Model, exact: bool) -> None:
        self._target = target
        self._exact = exact
        self._moved: float | None = None

    def first_divergence(
        self, prompt: Sequence[int], plain: Sequence[int], other: Sequence[int], sampling: Sampling, seed: int
    ) -> FirstDivergence | None:
        """Where the other reply leaves plain decoding's to the same prompt with the same seed; None: nowhere.

        Reads the target, whose cache then holds something else.

        Raises:
            UsageError: a token that the target does not know.
        """
        if (token := max([0, *plain, *other])) >= (size := self._target.vocab_size):
            raise UsageError(f"token {token} is outside the vocabulary of {size}")
        place = first_difference(plain, other)
        if place is None:
            return None
        judge = Judge(sampling, seed)
        if place >= len(other) or place >= len(plain):
            margin = Margin(place, -1, -1, float("inf"))  # one ended where the other went on with the same tokens
        else:
            logits = read_after(self._target, [*prompt, *other[:place]])
            margin = judge.margin(prompt, other, place, logits)
            if margin.preferred == margin.token:  # plain's token, from this pass, is the other's: seen from there
                margin = judge.margin(prompt, plain, place, logits)
        allowed = 0.0 if self._exact else allowed_gap(self._disturbance(prompt, plain), judge.sampling)
        return FirstDivergence(margin, allowed)

    def _disturbance(self, prompt: Sequence[int], plain: Sequence[int]) -> float:
        if self._moved is None:
            reply = plain[:_CALIBRATION_TOKENS]
            ones = [logits.clone() for logits in forced(self._target, prompt, reply)]
            self._moved = max(disturbance(ones, self._target, prompt, reply, rows) for rows in _CALIBRATION_ROWS)
        return self._moved
