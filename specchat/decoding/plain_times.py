"""Plain decoding by context, measured by the same machinery with a budget of 0."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from specchat.acceptance.follow import Follow
from specchat.controllers.off import Off
from specchat.core.budget import Budget
from specchat.core.context import Context
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


def measure_plain(target: Model, contexts: Sequence[int] = CONTEXTS) -> tuple[tuple[int, float], ...]:
    """Time plain rounds: (context, seconds per token), contexts ascending. Leaves the target's cache empty.

    What the cached rows contain does not change what reading them costs, so they are not computed.
    """
    fitting = [c for c in contexts if c + _WARM_ROUNDS + _ROUNDS < target.context_tokens] or [1]
    points = tuple((context_tokens, _measure_at(target, context_tokens)) for context_tokens in fitting)
    target.prefill(())
    return points


def _measure_at(target: Model, context_tokens: int) -> float:
    none = NoOptions()
    plain = Speculator(target, Nothing(none, Parts(target)), Chain(none), Follow(none), Off(none, Budget(nodes=0)))
    context = Context([0] * context_tokens, context_tokens, target.vocab_size)
    target.fill_for_benchmark(context_tokens - 1)
    seconds: list[float] = []
    for _ in range(_WARM_ROUNDS + _ROUNDS):
        timings = plain.round(context).timings
        seconds.append(timings.draft_s + timings.verify_s + timings.other_s)
    return statistics.median(seconds[_WARM_ROUNDS:])
