"""The rounds of a recording, one after another: each tree is drafted depth by depth and then judged depth by depth."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from specchat.engine.protocol.events import RoundDone
from specchat.tui.text.cells import Run

DRAFT_S, PENDING_S, JUDGE_S, WHOLE_S = 0.16, 0.5, 0.2, 1.4
"""How long a depth is shown while it is drafted, the whole draft before it is judged, each depth then, and the end."""

MOST_ROUNDS = 30
"""After so many rounds the last one stays: an idle app draws nothing."""


@dataclass(frozen=True)
class Stage:
    """One picture of a round: its nodes down to `drafted`, and its verdict down to `judged`; -1: none of it."""

    drafted: int
    judged: int
    shown_s: float


class GrowingTree:
    """What is shown now, and what comes after it.

    Args:
        rounds: rounds of one reply.
        source: the model that wrote it.
    """

    def __init__(self, rounds: Sequence[RoundDone], source: str) -> None:
        assert rounds, "there is a round to show"
        self.source = source
        self._rounds = rounds[:MOST_ROUNDS]
        self._at = 0
        self._stages = _stages(self.round)
        self.stage = next(self._stages)
        self.held = False

    @property
    def round(self) -> RoundDone:
        return self._rounds[self._at]

    @property
    def whole(self) -> bool:
        """Whether the verdict of the round is shown completely."""
        return self.stage.judged > len(self.round.verdict.path)

    @property
    def text(self) -> list[Run]:
        """The reply up to this round, which is included once its verdict is shown."""
        told = self._rounds[: self._at + self.whole]
        return [(piece.text, piece.origin) for round in told for piece in round.pieces]

    def advance(self) -> bool:
        """Go on to the next picture; False where it is held, or nothing comes after this one."""
        if self.held:
            return False
        if (stage := next(self._stages, None)) is None:
            if self._at + 1 == len(self._rounds):
                return False
            self._at += 1
            self._stages = _stages(self.round)
            stage = next(self._stages)
        self.stage = stage
        return True

    def show_branching(self) -> None:
        """Hold a whole round with several branches, for an app that does not move."""
        self._at = max(range(len(self._rounds)), key=lambda at: _branching(self._rounds[at]))
        *_, self.stage = _stages(self.round)
        self.held = True


def depths_of(round: RoundDone) -> list[int]:
    """The depth of every node of a round's tree."""
    depths: list[int] = []
    for parent in round.tree.parents:
        depths.append(depths[parent] + 1 if 0 <= parent < len(depths) else 0)
    return depths


def _stages(round: RoundDone) -> Iterator[Stage]:
    deepest, end = max(depths_of(round), default=0), len(round.verdict.path) + 1
    for depth in range(1, deepest):
        yield Stage(depth, 0, DRAFT_S)
    yield Stage(deepest, 0, PENDING_S)
    for depth in range(1, end):
        yield Stage(deepest, depth, JUDGE_S)
    yield Stage(deepest, end, WHOLE_S)


def _branching(round: RoundDone) -> int:
    """How much a tree has to show: some kept guesses, and nodes beside others."""
    parents = round.tree.parents
    return min(3, len(round.verdict.path)) + len(parents) - len(set(parents))
