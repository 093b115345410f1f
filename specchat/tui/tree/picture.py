"""A round prepared for drawing: label and state of each node, the spine along the accepted path, and their marks."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import lru_cache

from specchat.engine.protocol.events import RoundDone
from specchat.engine.protocol.round_nodes import drafted_of, probability_of, proposers_of, state_of
from specchat.engine.protocol.text import visible
from specchat.tui.state.reply_figures import depths_of
from specchat.tui.text.cells import ELLIPSIS, Run, ScreenLine, bar, cut, width_of

TOKEN_CELLS = 10


@dataclass(frozen=True)
class Marks:
    """One set of characters to draw trees with; every mark is one cell wide."""

    accepted: str
    bonus: str
    rejected: str
    unreached: str
    pruned: str
    cut: str
    pending: str
    forbidden: str  # a guess that does not fit what the reply is held to
    agreed: str  # behind a token that several drafters proposed: two of them, three, more
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
    shades: str  # from improbable to certain

    def glyph(self, state: str) -> str:
        return "" if state == "root" else str(getattr(self, state))

    def agreement(self, proposers: int) -> str:
        """The mark behind a token that this many drafters proposed."""
        return "" if proposers < 2 else self.agreed[min(proposers, len(self.agreed) + 1) - 2]

    def bar(self, share: float, cells: int) -> str:
        return bar(share, cells) if self.full == "━" else (self.full * round(share * cells)).ljust(cells)

    def shade(self, probability: float | None) -> str:
        """A probability as the darkness of one cell; blank where it is not known."""
        return " " if probability is None else self.shades[min(len(self.shades) - 1, int(probability * 5))]


UNICODE = Marks(
    accepted="●", bonus="★", rejected="✕", unreached="○", pruned="⊘", cut="◐", pending="◌", forbidden="▧", agreed="²³⁺",
    river="━", river_fork="┯", line="─", fork="┬", branch="├", corner="╰", pipe="│", more="…", space="·", newline="⏎",
    tab="⇥", full="━", shades=" ░▒▓█",
)  # fmt: skip
ASCII = Marks(
    accepted="*", bonus="+", rejected="x", unreached=".", pruned="%", cut="!", pending="?", forbidden="#", agreed="&&&",
    river="=", river_fork="=", line="-", fork="-", branch="|", corner="`", pipe="|", more="~", space="_", newline="$",
    tab=">", full="#", shades=" .:=#",
)  # fmt: skip


_END = re.compile(
    r"<\|(?:im_end|endoftext|eot_id|eom_id|end_of_text|end|return)\|>|</s>|<eos>|<end_of_turn>|<｜end▁of▁sentence｜>"
)
"""The tokens with which models end a reply."""

END_OF_REPLY = "end of reply"

FORCED_BY = "grammar"
"""The proposer of tokens that must follow."""


@lru_cache(maxsize=4096)
def label(text: str, marks: Marks, cells: int = TOKEN_CELLS) -> str:
    """A token's text with its white space visible, cut to a few cells."""
    if _END.fullmatch(text):
        return cut(END_OF_REPLY, max(cells, len(END_OF_REPLY)))
    shown = text.replace(" ", marks.space).replace("\n", marks.newline).replace("\t", marks.tab)
    shown = cut(visible(shown), cells) or "∅"
    return shown if marks is UNICODE else shown.encode("ascii", "replace").decode().replace("?", marks.more)


WHOLE_CELLS = 40
"""The longest labels, where there is room."""

NO_NODE = -1
"""The number of drawn items that are not nodes, such as an ellipsis."""


def number_in(role: str) -> int | None:
    """The node that a run shows, which layouts write behind its role; None where it shows none."""
    _, mark, number = role.partition("#")
    return int(number) if mark and number != str(NO_NODE) else None


def nodes_in(lines: list[ScreenLine]) -> int:
    return len({number for line in lines for _, role in line if (number := number_in(role)) is not None})


@dataclass(frozen=True, slots=True)
class DrawnNode:
    """One token prepared for drawing. During an animation `shown_state` is `pending` until the verdict is shown."""

    number: int
    label: str
    state: str  # root, accepted, bonus, rejected, unreached, pruned, cut, forbidden
    shown_state: str
    probability: float | None
    branches: tuple[int, ...] = ()  # children that are not on the path
    depth: int = 0
    accent: str = ""  # selected, or ancestor of the selected node
    agreed: str = ""
    drafted: float | None = None  # how likely the drafter held it
    whole: str = ""  # the label where there is room
    forced: bool = False  # nothing else may stand here

    @property
    def likelihood(self) -> float | None:
        """Its probability by the target where known, else by the drafter."""
        return self.drafted if self.probability is None else self.probability

    def cut_to(self, cells: int, marks: Marks) -> DrawnNode:
        """The node with a label of at most so many cells."""
        if not self.whole:
            return self
        shown = cut(self.whole, cells).replace(ELLIPSIS, marks.more)
        return self if shown == self.label else replace(self, label=shown)

    def runs(self, marks: Marks) -> list[Run]:
        return [self.mark(marks), *self.words()]

    def words(self) -> list[Run]:
        """The label, and whether several drafters agreed on it."""
        forced = self.forced and self.shown_state == "accepted"
        role = self.accent or ("forced" if forced else self.shown_state)
        words = [(self.label, f"{role}#{self.number}")]
        return [*words, (self.agreed, f"agreed#{self.number}")] if self.agreed else words

    def mark(self, marks: Marks) -> Run:
        """The mark alone; only the label of a rejected token is struck out."""
        role = "crossed" if self.shown_state in ("rejected", "forbidden") else self.shown_state
        return (marks.glyph(self.shown_state), f"{role}#{self.number}")


@dataclass(frozen=True)
class Picture:
    """A round as it is drawn: every node, and the spine from the root along the accepted path to the bonus."""

    nodes: tuple[DrawnNode, ...]
    spine: tuple[DrawnNode, ...]
    drafted: int

    def branch_size(self, index: int) -> int:
        """Nodes of the branch that begins here, itself included; a forbidden guess is none."""
        count, stack = 0, [index]
        while stack:
            node = stack.pop()
            count += self.nodes[node].state != "forbidden"
            stack.extend(self.nodes[node].branches)
        return count


def picture_of(round: RoundDone, marks: Marks, upto: int | None = None, chosen: int | None = None) -> Picture:
    """Read a round's tree and verdict.

    Args:
        upto: the depth down to which the verdict is shown; None: all of it. Only the shown states depend on it.
        chosen: the node that is selected; the bonus is the one after the tree's last.
    """
    tree, verdict = round.tree, round.verdict
    path = [node for node in verdict.path if 0 < node < len(tree.texts)]
    on_path = {0, *path}
    branches: list[list[int]] = [[] for _ in tree.texts]
    depths = depths_of(round)
    for index, parent in enumerate(tree.parents):
        if 0 <= parent < index and index not in on_path:
            branches[parent].append(index)
    ancestors = _ancestors(round, path, chosen)
    proposers = proposers_of(round)
    agreed = {child: marks.agreement(len(names)) for child, names in proposers.items() if len(names) > 1}
    drafted = drafted_of(round)
    last = len(path) + 1 if upto is None else upto
    nodes = []
    for index, text in enumerate(tree.texts):
        state = state_of(round, index, on_path)
        seen = index == 0 or depths[index] <= last or last > len(path)
        accent = "selected" if index == chosen else "ancestor" if index in ancestors else ""
        logprobs = round.tree.target_logprob
        probability = probability_of(logprobs[index]) if index < len(logprobs) else None
        nodes.append(
            DrawnNode(index, label(text, marks), state, state if seen else "pending", probability,
                 tuple(branches[index]), depths[index], accent, agreed.get(index, ""), drafted.get(index),
                 label(text, marks, WHOLE_CELLS), FORCED_BY in proposers.get(index, ()))
        )  # fmt: skip
    walls = [_wall(guess.text, depths[guess.parent] + 1, marks) for guess in tree.forbidden]
    for place, guess in enumerate(tree.forbidden, len(nodes)):
        branches[guess.parent].append(place)
    nodes = [replace(node, branches=tuple(branches[node.number])) for node in nodes] if walls else nodes
    spine = [nodes[0], *(nodes[index] for index in path)] if nodes else []
    if verdict.bonus is not None:
        spine.append(_bonus(round, len(nodes), len(path) + 1, marks, seen=last > len(path), chosen=chosen))
    return Picture((*nodes, *walls), tuple(spine), max(0, len(nodes) - 1))


def _wall(text: str, depth: int, marks: Marks) -> DrawnNode:
    """A guess that was forbidden: drawn below its parent, and no node."""
    said, whole = (label(text, marks, cells) for cells in (TOKEN_CELLS, WHOLE_CELLS))
    return DrawnNode(NO_NODE, said, "forbidden", "forbidden", None, (), depth, whole=whole)


def _bonus(round: RoundDone, number: int, depth: int, marks: Marks, *, seen: bool, chosen: int | None) -> DrawnNode:
    """The bonus token; its label is blank until the verdict is shown."""
    said, whole = (label(round.verdict.bonus_text, marks, cells) for cells in (TOKEN_CELLS, WHOLE_CELLS))
    accent = "selected" if number == chosen else ""
    node = DrawnNode(
        number, said, "bonus", "bonus", probability_of(round.verdict.bonus_logprob), (), depth, accent, whole=whole
    )
    blank, blank_whole = (" " * width_of([(text, "")]) for text in (said, whole))
    return node if seen else replace(node, label=blank, whole=blank_whole, shown_state="pending")


def _ancestors(round: RoundDone, path: list[int], chosen: int | None) -> Collection[int]:
    """The nodes on the way from the root to the chosen one."""
    if chosen is None:
        return ()
    parents = round.tree.parents
    node = parents[chosen] if chosen < len(parents) else (path[-1] if path else 0)
    ancestors = set()
    while node > 0:
        ancestors.add(node)
        node = parents[node]
    return ancestors
