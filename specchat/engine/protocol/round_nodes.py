"""A round's nodes as they are shown: parent, text, state, probabilities, proposers; and where layers decided tokens."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from specchat.engine.protocol.events import RoundDone
from specchat.engine.protocol.round_parts import Lens

_MOST_CELLS = 48
"""Cells that show at which layers the tokens of a reply were decided."""


@dataclass(frozen=True, slots=True)
class ShownNode:
    """One token of a round. `state` is root, accepted, bonus, rejected, unreached, pruned or cut."""

    parent: int  # -1: the root's
    text: str
    state: str
    target: float | None  # its probability by the target, None where the target was not asked
    draft: float | None
    proposers: tuple[str, ...] = ()


def shared_nodes(path: Sequence[int], other: Sequence[int]) -> int:
    """How many nodes two paths have in common, from their beginning."""
    for place, (one, two) in enumerate(zip(path, other, strict=False)):
        if one != two:
            return place
    return min(len(path), len(other))


def nodes_of(round: RoundDone) -> list[ShownNode]:
    """The nodes of the tree, then the bonus token below the end of the accepted path."""
    tree, verdict = round.tree, round.verdict
    drafted, proposers, on_path = drafted_of(round), proposers_of(round), {0, *verdict.path}
    nodes = [
        ShownNode(
            parent, tree.texts[node], state_of(round, node, on_path), probability_of(tree.target_logprob[node]),
            drafted.get(node), tuple(proposers.get(node, ())),
        )
        for node, parent in enumerate(tree.parents)
    ]  # fmt: skip
    if verdict.bonus is not None:
        likely = probability_of(verdict.bonus_logprob)
        nodes.append(ShownNode((verdict.path or [0])[-1], verdict.bonus_text, "bonus", likely, None))
    return nodes


def state_of(round: RoundDone, index: int, on_path: Collection[int]) -> str:
    """The state of a node of the tree; `on_path` holds the root and the accepted path."""
    if index == 0:
        return "root"
    if index in on_path:
        return "accepted"
    reasons = round.verdict.reasons
    reason = reasons[index] if index < len(reasons) else "unreached"
    return "unreached" if reason == "accepted" else reason


def proposers_of(round: RoundDone) -> dict[int, list[str]]:
    """The proposers of each node in order, with merged drafters listed separately."""
    found: dict[int, list[str]] = {}
    for draw in round.tree.draws:
        names = found.setdefault(draw.child, [])
        names += [name for name in draw.proposer.split("+") if name and name not in names]
    return found


def drafted_of(round: RoundDone) -> dict[int, float]:
    """The drafter's probability of each node, where known; the highest of several drafters."""
    found: dict[int, float] = {}
    for draw in round.tree.draws:
        if (probability := probability_of(draw.draft_logprob)) is not None:
            found[draw.child] = max(probability, found.get(draw.child, 0.0))
    return found


def lens_at(round: RoundDone, parent: int) -> Lens | None:
    """What was looked at where the target went on from this node; None where it was not asked, or not there."""
    visited = [0, *round.verdict.path]
    at = visited.index(parent) if parent in visited else len(round.pieces)
    return round.pieces[at].lens if at < len(round.pieces) else None


@dataclass(frozen=True)
class LayerHeat:
    """How late the tokens of a reply were decided: of each cell the mean share of the layers, 1 the last one."""

    shares: list[float]
    tokens: int
    mean_layer: float
    layers: int

    @property
    def words(self) -> str:
        many = f"some {self.tokens / len(self.shares):.0f} tokens"
        each = f"each {'a token' if len(self.shares) == self.tokens else many}"
        return f"decided at layer {self.mean_layer:.0f} of {self.layers} on average · low is early, {each}"


def heat_of(rounds: Sequence[RoundDone]) -> LayerHeat | None:
    """None where no token tells; of longer replies each cell is the mean of several tokens."""
    lenses = [piece.lens for round in rounds for piece in round.pieces if piece.lens is not None]
    if not lenses:
        return None
    share = [lens.decided / lens.layers for lens in lenses]
    cells = min(len(share), _MOST_CELLS)
    bounds = [(at * len(share) // cells, (at + 1) * len(share) // cells) for at in range(cells)]
    means = [sum(share[begin:end]) / (end - begin) for begin, end in bounds]
    return LayerHeat(means, len(share), sum(lens.decided for lens in lenses) / len(lenses), lenses[-1].layers)


def probability_of(logprob: float | None) -> float | None:
    return None if logprob is None or math.isnan(logprob) else math.exp(min(0.0, logprob))
