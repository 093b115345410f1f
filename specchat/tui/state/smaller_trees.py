"""What a reply's rounds would have been with smaller trees, from the rounds as they were kept, without any model."""

from __future__ import annotations

import bisect
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from specchat.engine.protocol.events import RedoneRounds, RoundDone, WouldBe
from specchat.engine.protocol.round_parts import Piece
from specchat.errors import UsageError

SMALLER = ("nodes", "depth", "width")
"""The settings of which a smaller value leaves guesses out of the trees that are there."""


def would_have_been(
    rounds: Sequence[RoundDone], at: int, own: Mapping[str, Any], changes: Mapping[str, Any]
) -> WouldBe:
    """The rounds with the least likely, deepest or last guesses left out; the reply's text decides what is kept.

    Where a round keeps less, the next one begins inside its tree, and guesses what that tree has there: no fewer
    tokens a round than that. A pass takes what passes of so many rows took, drafting what it took.

    Raises:
        UsageError: the trees that are there do not tell.
    """
    limits = {}
    for name, value in changes.items():
        if name not in SMALLER:
            raise UsageError(f"the kept rounds tell of fewer nodes, less depth and less width; {name} takes the model")
        had = own.get(name) or max(int(round.budget.get(name, 0)) for round in rounds)
        if value > had:
            raise UsageError(f"the rounds were made with {name} {had}; what more would have done takes the model")
        limits[name] = int(value)
    times = _PassTimes(rounds)
    parts = [list(_parts(round, limits)) for round in rounds]
    drafting = [round.timings.draft_s + round.timings.learn_s for round in rounds]
    before_s = sum(times.of(len(round.tree.tokens)) for round in rounds) + sum(drafting)
    after_s = sum(
        times.of(len(one.tree.tokens)) + (took if len(one.tree.tokens) > 1 else 0.0)
        for several, took in zip(parts, drafting, strict=True)
        for one in several
    )
    tokens = sum(len(round.pieces) for round in rounds)
    count = sum(map(len, parts))
    return WouldBe(
        0,
        RedoneRounds(len(rounds), tokens, sum(map(_drafted, rounds)), before_s / len(rounds)),
        RedoneRounds(count, tokens, sum(_drafted(one) for several in parts for one in several), after_s / count),
        decided=True,
        round=parts[at][0],
    )


def _drafted(round: RoundDone) -> int:
    return len(round.tree.tokens) - 1


def _parts(round: RoundDone, limits: Mapping[str, int]) -> Iterator[RoundDone]:
    """The rounds that write what this one wrote: the first from its root, each other one from where the last ended."""
    line = [0, *round.verdict.path]
    at = 0
    while at < len(line) and at < len(round.pieces):
        kept = _kept(round, line[at], limits)
        end = next((n for n in range(at + 1, len(line)) if line[n] not in kept), len(line))
        yield _part(round, line, at, end, sorted(kept))
        at = end


def _kept(round: RoundDone, root: int, limits: Mapping[str, int]) -> set[int]:
    """The nodes below this root that fit the limits: the likeliest ones, where drafters said how likely all are."""
    tree = round.tree
    logprob = {draw.child: draw.draft_logprob for draw in tree.draws}
    depth, said = {root: 0}, {root: 0.0}
    known = all(logprob.get(node) is not None for node in range(1, len(tree.tokens)))
    width, deepest = limits.get("width", len(tree.tokens)), limits.get("depth", len(tree.tokens))
    children = Counter[int]()
    inner = range(root + 1, len(tree.tokens))
    for node in sorted(inner, key=lambda node: (tree.parents[node], -(logprob[node] or 0.0) if known else 0.0, node)):
        parent = tree.parents[node]
        children[parent] += 1
        if parent not in depth or depth[parent] >= deepest or children[parent] > width:
            continue
        depth[node] = depth[parent] + 1
        said[node] = said[parent] + (logprob[node] or 0.0) if known else 0.0
    order = sorted((node for node in depth if node != root), key=lambda node: (-said[node], node))
    return {root, *order[: limits.get("nodes", len(order))]}


def _part(round: RoundDone, line: Sequence[int], at: int, end: int, kept: Sequence[int]) -> RoundDone:
    """The round from node `line[at]` on whose tree has these nodes, and which keeps those of the line before `end`."""
    tree, verdict = round.tree, round.verdict
    number = {node: place for place, node in enumerate(kept)}
    visited = set(line[at:end])
    reasons = [
        was if was in ("pruned", "cut") or node in visited
        else "rejected" if tree.parents[node] in visited
        else "unreached"
        for node, was in ((node, verdict.reasons[node]) for node in kept)
    ]  # fmt: skip
    reasons[0] = "accepted"
    cut = replace(
        tree,
        tokens=[tree.tokens[node] for node in kept],
        parents=[-1, *(number[tree.parents[node]] for node in kept[1:])],
        texts=[tree.texts[node] for node in kept],
        draws=[replace(draw, child=number[draw.child]) for draw in tree.draws if number.get(draw.child, 0)],
        target_logprob=[tree.target_logprob[node] if tree.parents[node] in visited else None for node in kept],
        forbidden=[replace(one, parent=number[one.parent]) for one in tree.forbidden if one.parent in number],
    )
    path = [number[node] for node in line[at + 1 : end]]
    if end < len(line):
        own = line[end]
        said = replace(
            verdict, path=path, bonus=tree.tokens[own], bonus_text=tree.texts[own],
            bonus_logprob=tree.target_logprob[own], reasons=reasons,
        )  # fmt: skip
    else:
        said = replace(verdict, path=path, reasons=reasons)
    pieces = round.pieces[at : end if end < len(line) else len(round.pieces)]
    if end < len(line) and pieces:
        last: Piece = pieces[-1]
        pieces = [*pieces[:-1], replace(last, origin="target")]
    return replace(round, tree=cut, verdict=said, pieces=pieces)


class _PassTimes:
    """Seconds of a pass by its rows: the median of those of so many, and between two of them in proportion."""

    def __init__(self, rounds: Sequence[RoundDone]) -> None:
        took: dict[int, list[float]] = defaultdict(list)
        for round in rounds:
            took[len(round.tree.tokens)].append(round.timings.verify_s)
        self._known = {rows: statistics.median(seconds) for rows, seconds in sorted(took.items())}

    def of(self, rows: int) -> float:
        known, counts = self._known, list(self._known)
        after = bisect.bisect_left(counts, rows)
        if after == len(counts) or after == 0 or counts[after] == rows:
            return known[counts[min(after, len(counts) - 1)]]
        low, high = counts[after - 1], counts[after]
        return known[low] + (known[high] - known[low]) * (rows - low) / (high - low)
