"""A reply's speed-up as its events tell it: heard round by round, or read from the figures it ended with."""

from __future__ import annotations

from specchat.core.speedup import FEWEST_PLAIN_ROUNDS, RoundIntervals, Speedup
from specchat.engine.protocol.events import RoundDone, Stats


def add_round(gaps: RoundIntervals, round: RoundDone) -> None:
    """Count a round that was told of."""
    drafted = max(0, len(round.tree.tokens) - 1)
    plain = round.budget.get("nodes") == 0
    gaps.add(round.at_s, round.timings.total_s, len(round.pieces), drafted, plain, round.timings.learn_s)


def speedup_of(stats: Stats) -> Speedup | None:
    """The speed-up of a reply that was kept; None without one, or without the plain rounds that it is based on."""
    if stats.speedup is None or stats.speedup_low is None or stats.speedup_high is None:
        return None
    return Speedup(stats.speedup, stats.speedup_low, stats.speedup_high, stats.plain_rounds)


def source_of(speedup: Speedup | None, plain_rounds: int) -> str:
    """The plain rounds that a speed-up is based on, or why there is none."""
    if speedup is not None:
        return f"{speedup.plain_rounds:,} plain rounds here"
    if plain_rounds < FEWEST_PLAIN_ROUNDS:
        return f"too few rounds to say ({plain_rounds} of {FEWEST_PLAIN_ROUNDS})"
    return "too uncertain to say"


def speedup_text(speedup: Speedup | None, plain_rounds: int) -> str:
    """`1.5× ± 0.1 (32 plain rounds here)`, or why nothing can be said."""
    source = source_of(speedup, plain_rounds)
    return f"{speedup.text} ({source})" if speedup is not None else f"speed-up: {source.partition(' (')[0]}"


def stats_line(stats: Stats) -> str:
    """A reply's figures in one line; of a target on another machine with what a round took there and on the way."""
    line = (
        f"{stats.tokens} tok · {stats.tokens_per_s:.1f} tok/s · τ {stats.acceptance_length:.2f} · "
        f"{stats.accepted} of {stats.drafted} drafted accepted · {speedup_text(speedup_of(stats), stats.plain_rounds)}"
    )
    if stats.there_s is None or not stats.rounds:
        return line
    there, way = (1000 * seconds / stats.rounds for seconds in (stats.there_s, stats.verify_s - stats.there_s))
    return f"{line} · a round {there:.1f} ms there, {max(0.0, way):.1f} ms on the way"
