"""Whether speculation wrote plain decoding's text, token by token; ties of rounded logits told apart from faults."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from specchat.bench.measured import Measured
from specchat.bench.one_row import Judge, Margin, allowed_gap, disturbance, first_difference, forced, read_after

if TYPE_CHECKING:
    from specchat.core.sampling import Sampling
    from specchat.core.seams import Model

_CALIBRATION_TOKENS = 48
_CALIBRATION_ROWS = (2, 8, 17)


@dataclass(frozen=True)
class Divergence:
    """The first place at which a reply is not plain's.

    Args:
        allowed: the margin up to which two tokens count as tied: what passes of different sizes differ by.
    """

    contestant: str
    question_id: str
    turn: int
    margin: Margin
    allowed: float

    @property
    def tie(self) -> bool:
        return self.margin.gap <= self.allowed


@dataclass(frozen=True)
class SameText:
    """How many replies of a contestant are plain's, token by token, and where the others leave it.

    Args:
        promised: whether the same text is promised at all: rules that keep the distribution only do so greedily.
    """

    equal: int
    total: int
    promised: bool
    divergences: tuple[Divergence, ...] = ()

    @property
    def ok(self) -> bool:
        """Nothing left plain's text that had promised not to, other than at a tie."""
        return not self.promised or all(divergence.tie for divergence in self.divergences)


class Comparison:
    """Compares replies with plain's over one loaded target. Measures what counts as a tie when first needed.

    Args:
        exact: no margin is excused: in float32 the text must be the same.
    """

    def __init__(self, target: Model, exact: bool) -> None:
        self._target = target
        self._exact = exact
        self._moved: float | None = None

    def compare(
        self, plain: Sequence[Measured], others: Sequence[Measured], sampling: Sampling, promised: bool
    ) -> SameText:
        """Judge replies against plain decoding's to the same prompts."""
        by_prompt = {reply.about: reply for reply in plain}
        pairs = [(by_prompt[other.about], other) for other in others if other.about in by_prompt]
        found: list[Divergence] = []
        for reply, other in pairs:
            place = first_difference(reply.written.tokens, other.written.tokens)
            if place is not None:
                found.append(self._divergence(reply, other, sampling, place))
        return SameText(len(pairs) - len(found), len(pairs), promised, tuple(found))

    def _divergence(self, plain: Measured, other: Measured, sampling: Sampling, place: int) -> Divergence:
        prompt, reply, judge = list(other.prompt), other.written.tokens, Judge(sampling, other.seed)
        if place >= len(reply) or place >= len(plain.written.tokens):
            margin = Margin(place, -1, -1, float("inf"))  # one ended where the other went on with the same tokens
        else:
            logits = read_after(self._target, [*prompt, *reply[:place]])
            margin = judge.margin(prompt, reply, place, logits)
            if margin.preferred == margin.token:  # plain's token, from this pass, is the other's: seen from there
                margin = judge.margin(prompt, plain.written.tokens, place, logits)
        allowed = 0.0 if self._exact else allowed_gap(self._disturbance(prompt, plain), judge.sampling)
        return Divergence(other.contestant, other.question_id, other.turn, margin, allowed)

    def _disturbance(self, prompt: list[int], plain: Measured) -> float:
        if self._moved is None:
            reply = plain.written.tokens[:_CALIBRATION_TOKENS]
            ones = [logits.clone() for logits in forced(self._target, prompt, reply)]
            self._moved = max(disturbance(ones, self._target, prompt, reply, rows) for rows in _CALIBRATION_ROWS)
        return self._moved
