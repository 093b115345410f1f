"""One round's record: the verdict about its tree, what was planned, emitted and timed; and totals over rounds."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from itertools import zip_longest

from specchat.core.budget import Budget
from specchat.core.constraint import Refused
from specchat.core.reading import Reading
from specchat.core.record import record
from specchat.core.tree import ROOT, TokenTree


class Reason(Enum):
    """Why a node stands or does not."""

    ACCEPTED = "accepted"
    REJECTED = "rejected"  # its parent stands, and the target's token there was another
    UNREACHED = "unreached"  # its parent does not stand, so it was not judged
    PRUNED = "pruned"  # dropped in the middle of the target's pass
    CUT = "cut"  # accepted, but the reply ended before it


@record
class Verdict:
    """The accepted path and the token that ends it.

    Args:
        path: (A,) accepted nodes, the root excluded, ascending.
        bonus: the target's own token after the path; None where the reply ends on an accepted node.
        tree: what was judged, N nodes.
        dead: the nodes dropped during the pass.
        sources: (A,) for every accepted node, where in the text the token stands that the rule copied, if it copied
            one; empty under rules that copy nothing.
        beyond: nodes that were accepted, but the reply ended before them.
    """

    path: tuple[int, ...]
    bonus: int | None
    tree: TokenTree
    dead: Collection[int] = ()
    sources: tuple[int | None, ...] = ()
    beyond: tuple[int, ...] = ()

    @property
    def emitted(self) -> tuple[int, ...]:
        """The tokens this round adds to the text: the path's, then the bonus."""
        tokens = [self.tree.tokens[node] for node in self.path]
        return tuple(tokens) if self.bonus is None else (*tokens, self.bonus)

    @cached_property
    def reasons(self) -> tuple[Reason, ...]:
        """(N,) one per node; the root's is ACCEPTED. Worked out only where it is asked for."""
        reasons = [Reason.UNREACHED] * len(self.tree)
        standing = (ROOT, *self.path, *self.beyond)
        for node in standing:
            for child in self.tree.children(node):
                reasons[child] = Reason.REJECTED
        for node in self.dead:
            reasons[node] = Reason.PRUNED
        for node in standing:
            reasons[node] = Reason.ACCEPTED
        for node in self.beyond:
            reasons[node] = Reason.CUT
        return tuple(reasons)

    def cut(self, count: int) -> Verdict:
        """The same verdict with only the first `count` emitted tokens: text, cache and counts end together."""
        if count > len(self.path):
            return self
        kept, beyond = self.path[:count], (*self.path[count:], *self.beyond)
        return Verdict(kept, None, self.tree, self.dead, self.sources[:count], beyond)


@record
class JointPass:
    """A pass of the target that read trees of several texts."""

    texts: int
    rows: int
    seconds: float


@dataclass
class RoundTimings:
    """Seconds spent drafting, verifying, and on everything else; written in as they are measured.

    Args:
        learn_s: what of everything else plain decoding does not have: what drafter and policy took to learn from the
            round, and from then on also what the controller took to plan and to learn.
        joint: the pass that verified it, where that read other texts too; `verify_s` is its share then, by rows.
        there_s: of `verify_s`, what the target took on another machine; None where it is here.
    """

    draft_s: float = 0.0
    verify_s: float = 0.0
    other_s: float = 0.0
    learn_s: float = 0.0
    joint: JointPass | None = None
    there_s: float | None = None


@record
class Round:
    """Plan, draft, verify, judge, keep, learn: once.

    Args:
        index: counts from 0 within a reply.
        start: tokens of history before the round, the root included.
        history: the live text; it ends with the root while the round is observed, and goes on afterwards.
        emitted: tokens this round added to the text, after any cut.
        timings: complete once the round is over; while it is observed, what has been measured so far. The controller
            observes it after the drafter.
        extra_rows: rows that the drafter attached to the target's pass.
        refused: guesses that a constraint forbids, which got no place in the tree.
    """

    index: int
    start: int
    history: Sequence[int]
    budget: Budget
    tree: TokenTree
    reading: Reading
    verdict: Verdict
    emitted: tuple[int, ...]
    draft_passes: int = 0
    timings: RoundTimings = field(default_factory=RoundTimings)
    extra_rows: int = 0
    refused: tuple[Refused, ...] = ()

    @property
    def rows(self) -> int:
        """Rows that the target's pass was asked for: the tree's and the extra rows'."""
        return len(self.tree) + self.extra_rows

    @property
    def accepted(self) -> int:
        return len(self.verdict.path)


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
    there_s: float | None = None
    offered_by_depth: list[int] = field(default_factory=list)
    accepted_by_depth: list[int] = field(default_factory=list)

    def add(self, round: Round) -> None:
        self.rounds += 1
        self.tokens += len(round.emitted)
        self.drafted += round.tree.drafted
        self.accepted += round.accepted
        self.draft_passes += round.draft_passes
        self._add_times(round.timings)
        _count_up(self.offered_by_depth, max(round.tree.depths))
        _count_up(self.accepted_by_depth, round.accepted)

    def add_ledger(self, other: Ledger) -> None:
        for name in ("rounds", "tokens", "drafted", "accepted", "draft_passes"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self._add_times(RoundTimings(other.draft_s, other.verify_s, other.other_s, there_s=other.there_s))
        for name in ("offered_by_depth", "accepted_by_depth"):
            setattr(self, name, [*map(sum, zip_longest(getattr(self, name), getattr(other, name), fillvalue=0))])

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

    def _add_times(self, timings: RoundTimings) -> None:
        self.draft_s += timings.draft_s
        self.verify_s += timings.verify_s
        self.other_s += timings.other_s
        if timings.there_s is not None:
            self.there_s = (self.there_s or 0.0) + timings.there_s


def _count_up(by_depth: list[int], reached: int) -> None:
    """Count one more round for every depth from 1 to `reached`."""
    by_depth.extend([0] * (reached - len(by_depth)))
    for depth in range(reached):
        by_depth[depth] += 1
