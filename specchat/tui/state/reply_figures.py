"""The figures of a reply, computed from its rounds."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from specchat.core.speedup import RoundIntervals, Speedup
from specchat.engine.client.speedup import add_round, speedup_of, speedup_text
from specchat.engine.protocol.events import Finished, RoundDone, Stats

RECENT_S = 2.0


@dataclass
class Figures:
    """A reply's running totals. After `finish` the engine's own statistics take over."""

    rounds: int = 0
    tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    draft_s: float = 0.0
    verify_s: float = 0.0
    other_s: float = 0.0
    there_s: float | None = None
    context_tokens: int = 0
    offered_by_depth: list[int] = field(default_factory=list)
    accepted_by_depth: list[int] = field(default_factory=list)
    reused_tokens: int = 0
    prefill_s: float = 0.0
    stats: Stats | None = None
    gaps: RoundIntervals = field(default_factory=RoundIntervals)
    _recent: deque[tuple[float, int]] = field(default_factory=deque)  # when a round ended, tokens so far

    def add(self, round: RoundDone) -> None:
        if not self.rounds:
            self.prefill_s = max(0.0, round.at_s - round.timings.total_s)
        self.rounds += 1
        self.tokens += len(round.pieces)
        self.drafted += max(0, len(round.tree.tokens) - 1)
        self.accepted += len(round.verdict.path)
        self.draft_s += round.timings.draft_s
        self.verify_s += round.timings.verify_s
        self.other_s += round.timings.other_s
        if round.timings.there_s is not None:
            self.there_s = (self.there_s or 0.0) + round.timings.there_s
        self.context_tokens = round.context_tokens + len(round.pieces)
        add_round(self.gaps, round)
        _count_depths(self.offered_by_depth, max(depths_of(round), default=0))
        _count_depths(self.accepted_by_depth, len(round.verdict.path))
        self._recent.append((round.at_s, self.tokens))
        while len(self._recent) > 2 and round.at_s - self._recent[1][0] >= RECENT_S:
            self._recent.popleft()

    def finish(self, finished: Finished) -> None:
        self.stats = finished.stats

    def known_stats(self) -> Stats | None:
        """The engine's statistics; without an end of the reply, those of its rounds; None before it began."""
        if self.stats is not None or not self.context_tokens:
            return self.stats
        speedup = self.speedup
        return Stats(
            rounds=self.rounds, tokens=self.tokens, drafted=self.drafted, accepted=self.accepted,
            tokens_per_s=self.tokens_per_s, acceptance_length=self.acceptance_length,
            acceptance_rate=self.acceptance_rate, prefill_s=self.prefill_s, draft_s=self.draft_s,
            verify_s=self.verify_s, other_s=self.other_s, there_s=self.there_s,
            prompt_tokens=self.context_tokens - self.tokens, reused_tokens=self.reused_tokens,
            offered_by_depth=list(self.offered_by_depth),
            accepted_by_depth=list(self.accepted_by_depth), plain_rounds=self.plain_rounds,
            speedup=speedup.value if speedup else None, speedup_low=speedup.low if speedup else None,
            speedup_high=speedup.high if speedup else None,
        )  # fmt: skip

    @property
    def acceptance_length(self) -> float:
        """τ: mean tokens per round, the bonus token included."""
        return self.stats.acceptance_length if self.stats else self.tokens / max(1, self.rounds)

    @property
    def acceptance_rate(self) -> float:
        """Accepted of drafted, the bonus token excluded."""
        return self.stats.acceptance_rate if self.stats else self.accepted / max(1, self.drafted)

    @property
    def tokens_per_s(self) -> float:
        """Decoding speed of the whole reply so far, prefill apart."""
        if self.stats:
            return self.stats.tokens_per_s
        return self.tokens / self.decode_s if self.decode_s > 0 else 0.0

    @property
    def decode_s(self) -> float:
        """Seconds from the beginning of the first round to the end of the last one, pauses left out."""
        return max(0.0, self.at_s - self.prefill_s)

    @property
    def at_s(self) -> float:
        """When the last round ended, in the reply's own time."""
        return self._recent[-1][0] if self._recent else 0.0

    @property
    def recent_tokens_per_s(self) -> float | None:
        """Speed over the last two seconds of the reply; None where there is too little to say."""
        if len(self._recent) < 2:
            return None
        (begin_s, before), (end_s, after) = self._recent[0], self._recent[-1]
        return (after - before) / (end_s - begin_s) if end_s > begin_s else None

    @property
    def speedup(self) -> Speedup | None:
        """How much sooner than plain decoding, by the reply's own plain rounds; None where they do not say."""
        return speedup_of(self.stats) if self.stats else self.gaps.speedup

    @property
    def plain_rounds(self) -> int:
        """Rounds whose budget was 0."""
        return self.stats.plain_rounds if self.stats else self.gaps.plain_rounds

    def depths(self) -> list[float]:
        """Per depth: how often a round that drafted there had its token accepted."""
        known = self.stats or self
        padded = [*known.accepted_by_depth, *([0] * len(known.offered_by_depth))]
        return [taken / max(1, tried) for tried, taken in zip(known.offered_by_depth, padded, strict=False)]

    def split_s(self) -> list[tuple[str, float]]:
        """Mean seconds of a round, by what they went to."""
        checking = [("checking", self.verify_s)]
        if self.there_s is not None:  # the target is on another machine
            checking = [("there", self.there_s), ("way", max(0.0, self.verify_s - self.there_s))]
        parts = [("guessing", self.draft_s), *checking, ("other", self.other_s)]
        return [(name, seconds / max(1, self.rounds)) for name, seconds in parts]

    def line(self) -> str:
        """One line about the reply: how long, how fast, tokens per round, and how much sooner than plain decoding."""
        parts = [f"{self.tokens:,} tok", f"{self.tokens_per_s:.{1 if self.tokens_per_s < 10 else 0}f} tok/s"]
        if not self.drafted:
            return " · ".join([*parts, "plain decoding"])
        return " · ".join([*parts, f"τ {self.acceptance_length:.1f}", speedup_text(self.speedup, self.plain_rounds)])


def depths_of(round: RoundDone) -> list[int]:
    depths: list[int] = []
    for parent in round.tree.parents:
        depths.append(depths[parent] + 1 if 0 <= parent < len(depths) else 0)
    return depths


def _count_depths(counters: list[int], depth: int) -> None:
    counters.extend([0] * (depth - len(counters)))
    for level in range(depth):
        counters[level] += 1
