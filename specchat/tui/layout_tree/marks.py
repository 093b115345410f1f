"""What a round says about each node, and the marks that say it on the screen."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from specchat.engine.events import RoundDone
from specchat.engine.text import visible
from specchat.tui.rows import Run, cut

TOKEN_CELLS = 10


@dataclass(frozen=True)
class Marks:
    """One set of characters to draw trees with."""

    accepted: str
    bonus: str
    rejected: str
    unreached: str
    pending: str
    river: str  # the path's own line
    river_fork: str  # … where branches hang from it
    line: str
    fork: str
    branch: str
    corner: str
    pipe: str
    more: str
    space: str
    newline: str
    tab: str
    full: str

    def glyph(self, state: str) -> str:
        """The mark of a node in this state; the root has none."""
        return "" if state == "root" else str(getattr(self, state))


UNICODE = Marks(
    accepted="●", bonus="★", rejected="✕", unreached="○", pending="◌", river="━", river_fork="┯", line="─", fork="┬",
    branch="├", corner="╰", pipe="│", more="…", space="·", newline="⏎", tab="⇥", full="━",
)  # fmt: skip
ASCII = Marks(
    accepted="*", bonus="+", rejected="x", unreached=".", pending="?", river="=", river_fork="=", line="-", fork="-",
    branch="|", corner="`", pipe="|", more="~", space="_", newline="$", tab=">", full="#",
)  # fmt: skip


@dataclass(frozen=True)
class Node:
    """One token as it is drawn."""

    label: str
    state: str  # root, accepted, bonus, rejected, unreached, pending
    probability: float | None
    branches: tuple[int, ...] = ()  # children that are not on the path

    def runs(self, marks: Marks) -> list[Run]:
        """Mark and label."""
        return [self.mark(marks), (self.label, self.state)]

    def mark(self, marks: Marks) -> Run:
        """The mark alone; only the label of a rejected token is struck out."""
        return (marks.glyph(self.state), "crossed" if self.state == "rejected" else self.state)


@dataclass(frozen=True)
class Picture:
    """A round as it is drawn: every node, and the spine from the root along the accepted path to the bonus."""

    nodes: tuple[Node, ...]
    spine: tuple[Node, ...]
    drafted: int

    def below(self, index: int) -> int:
        """Nodes of the branch that begins here, itself included."""
        count, stack = 0, [index]
        while stack:
            node = stack.pop()
            count += 1
            stack.extend(self.nodes[node].branches)
        return count


@lru_cache(maxsize=4096)
def label(text: str, marks: Marks, cells: int = TOKEN_CELLS) -> str:
    """A token's text with its white space visible, cut to a few cells."""
    shown = text.replace(" ", marks.space).replace("\n", marks.newline).replace("\t", marks.tab)
    shown = cut(visible(shown), cells) or "∅"
    return shown if marks is UNICODE else shown.encode("ascii", "replace").decode().replace("?", marks.more)


def picture_of(round: RoundDone, marks: Marks) -> Picture:
    """Read a round's tree and verdict."""
    tree, verdict = round.tree, round.verdict
    path = [node for node in verdict.path if 0 < node < len(tree.texts)]
    on_path = {0, *path}
    branches: list[list[int]] = [[] for _ in tree.texts]
    for index, parent in enumerate(tree.parents):
        if 0 <= parent < index and index not in on_path:
            branches[parent].append(index)
    nodes = tuple(
        Node(label(text, marks), _state(round, index, on_path), _probability(round, index), tuple(branches[index]))
        for index, text in enumerate(tree.texts)
    )
    spine = [nodes[0], *(nodes[index] for index in path)] if nodes else []
    if verdict.bonus is not None:
        spine.append(Node(label(verdict.bonus_text, marks), "bonus", _exp(verdict.bonus_logprob)))
    return Picture(nodes, tuple(spine), max(0, len(nodes) - 1))


def _state(round: RoundDone, index: int, on_path: set[int]) -> str:
    if index == 0:
        return "root"
    if index in on_path:
        return "accepted"
    reasons = round.verdict.reasons
    reason = reasons[index] if index < len(reasons) else "unreached"
    return "rejected" if reason == "rejected" else "unreached"


def _probability(round: RoundDone, index: int) -> float | None:
    logprobs = round.tree.target_logprob
    return _exp(logprobs[index]) if index < len(logprobs) else None


def _exp(logprob: float | None) -> float | None:
    return None if logprob is None or math.isnan(logprob) else math.exp(min(0.0, logprob))
