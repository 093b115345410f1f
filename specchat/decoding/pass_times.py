"""Times for `specchat doctor`: plain decoding by context, and the phases of a native pass.

Phases are compared with what memory and arithmetic would take alone.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

from specchat.acceptance.follow import Follow
from specchat.controllers.fixed import Off
from specchat.core.budget import Budget
from specchat.core.context import Context
from specchat.core.seams import Model
from specchat.decoding.profiling import tree_of
from specchat.decoding.speculate import Speculator
from specchat.drafters.nothing import Nothing
from specchat.drafters.parts import Parts
from specchat.models.cpu_kernels.network import NativeNetwork
from specchat.models.decoder.decoder import Decoder
from specchat.models.decoder.kv_cache import zeroed_bytes
from specchat.registry import NoOptions
from specchat.trees.given_shapes import Chain

ROWS = (1, 4, 8, 16)
CONTEXTS = (200, 512, 2000)

_WARM, _TIMED, _TRIES = 3, 11, 5
_PROBE_BYTES = 1 << 28
"""Several times what any processor keeps near itself."""


@dataclass(frozen=True)
class PassTime:
    """Medians of one kind of pass, in seconds.

    Args:
        parts: seconds by phase of the kernels, as the thread that asks sees them; "python" is all the rest.
        memory_s: reading the weights, keys and values once, at the rate measured in the same run.
        arithmetic_s: the multiplications alone, at the rate measured in the same run.
    """

    context_tokens: int
    rows: int
    seconds: float
    parts: dict[str, float]
    memory_s: float
    arithmetic_s: float


def break_down(
    model: Decoder, network: NativeNetwork, rows: Sequence[int] = ROWS, contexts: Sequence[int] = CONTEXTS
) -> list[PassTime]:
    """Time passes phase by phase. Leaves the cache empty."""
    (bytes_s, operations_s), shape = _floor(network), network.shape
    times: list[PassTime] = []
    try:
        for context in (tokens for tokens in contexts if tokens + max(rows) <= model.context_tokens):
            taken = _taken(model, network, rows, context)
            for count in rows:
                seconds = statistics.median(took for took, _ in taken[count])
                names = taken[count][0][1]
                parts = {name: statistics.median(parts[name] for _, parts in taken[count]) for name in names}
                # Keys and values, 2 bytes each.
                cached = 2 * 2 * shape.layers * shape.kv_heads * shape.head_dim * context
                memory_s = (network.nbytes + cached) / bytes_s
                arithmetic_s = _operations(network, count, context) / operations_s
                times.append(PassTime(context, count, seconds, parts, memory_s, arithmetic_s))
    finally:
        network.time_phases(False)
        model.prefill(())
    return times


def _floor(network: NativeNetwork) -> tuple[float, float]:
    """The best rates of several tries: whatever else a machine does only makes it slower."""
    data = zeroed_bytes(_PROBE_BYTES).fill_(1)  # like weights: pages never written to take no memory
    tries = [network.floor(data) for _ in range(_TRIES)]
    return max(bytes_s for bytes_s, _ in tries), max(operations_s for _, operations_s in tries)


def _taken(
    model: Decoder, network: NativeNetwork, rows: Sequence[int], context: int
) -> dict[int, list[tuple[float, dict[str, float]]]]:
    """By number of rows: seconds of every pass, and of its parts. Up and down, so that a disturbance hits them all."""
    trees = {count: tree_of(count, model.vocab_size) for count in rows}
    taken: dict[int, list[tuple[float, dict[str, float]]]] = {count: [] for count in rows}
    for turn in range(_WARM + _TIMED):
        for count in rows if turn % 2 else rows[::-1]:
            model.fill_for_benchmark(context)
            network.time_phases(True)
            began = time.perf_counter()
            model.read(trees[count])
            seconds = time.perf_counter() - began
            parts = network.phases()
            if turn >= _WARM:
                taken[count].append((seconds, parts | {"python": seconds - sum(parts.values())}))
    return taken


def _operations(network: NativeNetwork, rows: int, context: int) -> float:
    """Of 8-bit products; those of bfloat16, which attention takes, count twice."""
    shape = network.shape
    attention = 4 * shape.layers * shape.heads * shape.head_dim * context
    return rows * (2.0 * network.weights + 2.0 * attention)


PLAIN_CONTEXTS = (64, 512, 2048)
"""Context lengths at which plain decoding is measured, as far as the model takes them."""

_WARM_ROUNDS = 2
_ROUNDS = 7


def measure_plain(target: Model) -> tuple[tuple[int, float], ...]:
    """Time plain rounds: (context, seconds per token), contexts ascending. Leaves the target's cache empty.

    What the cached rows contain does not change what reading them costs, so they are not computed.
    """
    fitting = [c for c in PLAIN_CONTEXTS if c + _WARM_ROUNDS + _ROUNDS < target.context_tokens] or [1]
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
