"""Totals over rounds: acceptance length, acceptance rate, speed."""

from __future__ import annotations

from dataclasses import dataclass, field

from specchat.core.round import Round, Timings


@dataclass
class Ledger:
    """Sums over rounds. The acceptance length τ counts the bonus token; the acceptance rate does not.

    Args:
        offered_by_depth: for depth 1, 2, …: rounds whose tree had a node so deep, on whatever path.
        accepted_by_depth: for depth 1, 2, …: rounds whose accepted path was so long. Never more than were offered, so
            their ratio is the share of trees of this depth that were accepted so far.
    """

    rounds: int = 0
    tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    draft_passes: int = 0
    draft_s: float = 0.0
    verify_s: float = 0.0
    other_s: float = 0.0
    offered_by_depth: list[int] = field(default_factory=list)
    accepted_by_depth: list[int] = field(default_factory=list)

    def add(self, round: Round) -> None:
        """Count one more round."""
        self.rounds += 1
        self.tokens += len(round.emitted)
        self.drafted += round.tree.drafted
        self.accepted += round.accepted
        self.draft_passes += round.draft_passes
        self._add_times(round.timings)
        _count_up(self.offered_by_depth, max(round.tree.depths))
        _count_up(self.accepted_by_depth, round.accepted)

    def add_ledger(self, other: Ledger) -> None:
        """Add another ledger's rounds to these."""
        for name in ("rounds", "tokens", "drafted", "accepted", "draft_passes"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self._add_times(Timings(other.draft_s, other.verify_s, other.other_s))
        for mine, theirs in (
            (self.offered_by_depth, other.offered_by_depth),
            (self.accepted_by_depth, other.accepted_by_depth),
        ):
            mine.extend([0] * (len(theirs) - len(mine)))
            for depth, count in enumerate(theirs):
                mine[depth] += count

    @property
    def acceptance_length(self) -> float:
        """τ: mean tokens emitted per round, bonus included."""
        return self.tokens / self.rounds if self.rounds else 0.0

    @property
    def acceptance_rate(self) -> float:
        """Accepted / drafted, bonus excluded."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def decode_s(self) -> float:
        """Seconds that all rounds took, prefill apart."""
        return self.draft_s + self.verify_s + self.other_s

    @property
    def tokens_per_s(self) -> float:
        """Tokens emitted per second of decoding; 0 before anything took time."""
        return self.tokens / self.decode_s if self.decode_s else 0.0

    def _add_times(self, timings: Timings) -> None:
        self.draft_s += timings.draft_s
        self.verify_s += timings.verify_s
        self.other_s += timings.other_s


def _count_up(by_depth: list[int], reached: int) -> None:
    """Count one more round for every depth from 1 to `reached`."""
    by_depth.extend([0] * (reached - len(by_depth)))
    for depth in range(reached):
        by_depth[depth] += 1
