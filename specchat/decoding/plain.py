"""The honest denominator: plain decoding, measured by the same machinery with a budget of 0."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from specchat.acceptance.follow import Follow
from specchat.controllers.off import Off
from specchat.core.budget import Budget
from specchat.core.context import Context
from specchat.core.costs import interpolate
from specchat.core.seams import Model
from specchat.decoding.speculate import Speculator
from specchat.drafters.nothing import Nothing
from specchat.drafters.parts import Parts
from specchat.registry import NoOptions
from specchat.trees.chain import Chain

CONTEXTS = (64, 512, 2048)
"""Context lengths at which plain decoding is measured, as far as the model takes them."""

_WARM_ROUNDS = 2
_ROUNDS = 7


@dataclass(frozen=True)
class PlainCurve:
    """Seconds per token of plain decoding, by context length."""

    points: tuple[tuple[int, float], ...]  # ascending contexts

    def seconds_at(self, context_tokens: int) -> float:
        """Interpolated between measured contexts, the nearest one outside them."""
        return interpolate(self.points, min(context_tokens, self.points[-1][0]))

    def faster_of(self, other: PlainCurve) -> PlainCurve:
        """The faster of two measurements, context by context: whatever else a machine does only makes it slower."""
        pairs = zip(self.points, other.points, strict=True)
        return PlainCurve(tuple((context, min(one, two)) for (context, one), (_, two) in pairs))


def measure_plain(
    target: Model, contexts: Sequence[int] = CONTEXTS, interrupted: Callable[[], bool] = lambda: False
) -> PlainCurve | None:
    """Time plain rounds at several contexts; None where somebody interrupted. Leaves the target's cache empty.

    What the cached rows contain does not change what reading them costs, so they are not computed.
    """
    fitting = [c for c in contexts if c + _WARM_ROUNDS + _ROUNDS < target.context_tokens] or [1]
    points: list[tuple[int, float]] = []
    try:
        for context_tokens in fitting:
            seconds = _measure_at(target, context_tokens, interrupted)
            if seconds is None:
                return None
            points.append((context_tokens, seconds))
    finally:
        target.prefill(())
    return PlainCurve(tuple(points))


def _measure_at(target: Model, context_tokens: int, interrupted: Callable[[], bool]) -> float | None:
    none = NoOptions()
    plain = Speculator(target, Nothing(none, Parts(target)), Chain(none), Follow(none), Off(none, Budget(nodes=0)))
    context = Context([0] * context_tokens, context_tokens, target.vocab_size)
    target.pretend(context_tokens - 1)
    seconds: list[float] = []
    for _ in range(_WARM_ROUNDS + _ROUNDS):
        if interrupted():
            return None
        timings = plain.round(context).timings
        seconds.append(timings.draft_s + timings.verify_s + timings.other_s)
    return statistics.median(seconds[_WARM_ROUNDS:])
