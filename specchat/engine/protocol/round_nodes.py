"""A round's nodes as they are shown: parent, text, state, probabilities, proposers. The bonus token is the last one."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

from specchat.engine.protocol.events import RoundDone


@dataclass(frozen=True, slots=True)
class ShownNode:
    """One token of a round. `state` is root, accepted, bonus, rejected, unreached, pruned or cut."""

    parent: int  # -1: the root's
    text: str
    state: str
    target: float | None  # its probability by the target, None where the target was not asked
    draft: float | None
    proposers: tuple[str, ...] = ()


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


def probability_of(logprob: float | None) -> float | None:
    return None if logprob is None or math.isnan(logprob) else math.exp(min(0.0, logprob))
