"""Whether speculation wrote plain decoding's text, token by token; ties of rounded logits told apart from faults."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from specchat.bench.measured_reply import Measured
from specchat.decoding.teacher_forcing import Comparer, Margin

if TYPE_CHECKING:
    from specchat.core.sampling import Sampling
    from specchat.core.seams import Model


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
        """Whether the contestant writes plain's text, ties apart, if it promises that."""
        return not self.promised or all(divergence.tie for divergence in self.divergences)


class Comparison:
    """Compares replies with plain's over one loaded target.

    Args:
        exact: no margin is excused: in float32 the text must be the same.
    """

    def __init__(self, target: Model, exact: bool) -> None:
        self._comparer = Comparer(target, exact)

    def compare(
        self, plain: Sequence[Measured], others: Sequence[Measured], sampling: Sampling, promised: bool
    ) -> SameText:
        """Judge replies against plain decoding's to the same prompts."""
        by_prompt = {reply.about: reply for reply in plain}
        matched = [(by_prompt[other.about], other) for other in others if other.about in by_prompt]
        found: list[Divergence] = []
        for reply, other in matched:
            written = (reply.written.tokens, other.written.tokens)
            if (
                divergence := self._comparer.first_divergence(other.prompt, *written, sampling, other.seed)
            ) is not None:
                where = (other.contestant, other.question_id, other.turn)
                found.append(Divergence(*where, divergence.margin, divergence.allowed))
        return SameText(len(matched) - len(found), len(matched), promised, tuple(found))
