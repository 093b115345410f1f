"""Navigation in a token tree: from a node to its parent, a child, or a neighbour at the same depth."""

from __future__ import annotations

from typing import Literal

from specchat.engine.protocol.events import RoundDone

Step = Literal["parent", "child", "previous", "next", "root", "bonus"]


def bonus_of(round: RoundDone) -> int | None:
    """The bonus's number: the one after the tree's last node; None where the reply ended without one."""
    return None if round.verdict.bonus is None else len(round.tree.tokens)


def parent_of(round: RoundDone, node: int) -> int:
    """The node before this one; −1 before the root."""
    if node < len(round.tree.parents):
        return round.tree.parents[node]
    return round.verdict.path[-1] if round.verdict.path else 0


def children_of(round: RoundDone, node: int) -> list[int]:
    """What follows this node: the path first, then the others as they were drafted."""
    children = [child for child, parent in enumerate(round.tree.parents) if parent == node and child > node]
    bonus = bonus_of(round)
    if bonus is not None and node < bonus and parent_of(round, bonus) == node:
        children.append(bonus)
    path = {*round.verdict.path, bonus}
    return sorted(children, key=lambda child: child not in path)


def neighbour(round: RoundDone, node: int, step: Step) -> int:
    """The node one step away, or the same one where there is none."""
    match step:
        case "parent":
            return max(0, parent_of(round, node))
        case "child":
            return next(iter(children_of(round, node)), node)
        case "root":
            return 0
        case "bonus":
            bonus = bonus_of(round)
            return bonus if bonus is not None else (round.verdict.path or [0])[-1]
    level = _nodes_at_depth_of(round, node)
    at = level.index(node) + (1 if step == "next" else -1)
    return level[at] if 0 <= at < len(level) else node


def depth_of(round: RoundDone, node: int) -> int:
    """Edges from the root."""
    depth = 0
    while (node := parent_of(round, node)) >= 0:
        depth += 1
    return depth


def _nodes_at_depth_of(round: RoundDone, node: int) -> list[int]:
    """All nodes of this one's depth, siblings beside each other."""
    level = [0]
    while level and node not in level:
        level = [child for parent in level for child in children_of(round, parent)]
    return level or [node]
