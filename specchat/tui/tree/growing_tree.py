"""The rounds of a recording as a growing tree: drafted depth by depth, then judged depth by depth.

A node appears in its final place; what is deeper than the depth reached is blank.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from specchat.engine.protocol.events import RoundDone
from specchat.tui.state.reply_figures import depths_of
from specchat.tui.text.cells import Run, ScreenLine, last_lines, width_of
from specchat.tui.tree import Drawing, Marks, draw, picture_of
from specchat.tui.tree.panel_lines import title_of

DRAFT_S, PENDING_S, JUDGE_S, WHOLE_S = 0.16, 0.5, 0.2, 1.4
"""How long a depth is shown while it is drafted, the whole draft before it is judged, each depth then, and the end."""

MOST_ROUNDS = 30
"""After so many rounds the last one stays: an idle app draws nothing."""


@dataclass(frozen=True)
class GrowthStage:
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


def _stages(round: RoundDone) -> Iterator[GrowthStage]:
    deepest, end = max(depths_of(round), default=0), len(round.verdict.path) + 1
    for depth in range(1, deepest):
        yield GrowthStage(depth, 0, DRAFT_S)
    yield GrowthStage(deepest, 0, PENDING_S)
    for depth in range(1, end):
        yield GrowthStage(deepest, depth, JUDGE_S)
    yield GrowthStage(deepest, end, WHOLE_S)


def _branching(round: RoundDone) -> int:
    """How much a tree has to show: some kept guesses, and nodes beside others."""
    parents = round.tree.parents
    return min(3, len(round.verdict.path)) + len(parents) - len(set(parents))


def grown_to(drawing: Drawing, depths: Sequence[int], depth: int, marks: Marks) -> list[ScreenLine]:
    """The lines of a tree of which the nodes down to this depth have been drafted.

    A connector appears together with the node it leads to; one that passes other lines, with the node further below.

    Args:
        drawing: the whole tree in the layout `river` or `log`, drawn with these marks.
        depths: the depth of every node; one that is not listed is the bonus, which is not drafted.
    """
    hidden = {node for node in drawing.shown if node >= len(depths) or depths[node] > depth}
    return [_visible(drawing, y, hidden, marks) for y in range(len(drawing.lines))]


def _visible(drawing: Drawing, y: int, hidden: Collection[int], marks: Marks) -> ScreenLine:
    line: ScreenLine = []
    own = [node for number, _, _, node in drawing.places if number == y]
    bare = bool(own) and all(node in hidden for node in own)
    at = 0
    for text, role in drawing.lines[y]:
        ahead, below = _nodes_behind(drawing, at, y)
        if role == "line":
            nodes = ahead or below
        elif role == "river":
            nodes = ahead + (below if text == marks.river_fork else [])
        else:
            nodes = [node for node in [drawing.node_at(at, y)] if node is not None]
        shown = any(node not in hidden for node in nodes) if nodes else role not in ("line", "dim") and not bare
        cells = width_of([(text, "")])
        line.append((text, role) if shown else (" " * cells, ""))
        at += cells
    return line


def _nodes_behind(drawing: Drawing, x: int, y: int) -> tuple[list[int], list[int]]:
    """The node that a connector here leads to in its own line, and the first one that it turns to further below."""
    behind = sorted((line, node) for line, left, _, node in drawing.places if left == x + 1 and line >= y)
    return [node for line, node in behind if line == y], [node for line, node in behind if line > y][:1]


TEXT_LINES, FEW_TEXT_LINES = 3, 1
MANY_LINES = 12
"""From so many lines on there is room for more than the text's last line."""

NARROWEST, LOWEST = 24, 7
"""With less room the tree is not drawn."""


def growing_tree_lines(tree: GrowingTree, width: int, height: int, marks: Marks) -> list[ScreenLine]:
    """Exactly `height` lines, so that nothing below them moves; none where there is not enough room."""
    if width < NARROWEST or height < LOWEST:
        return []
    lines = TEXT_LINES if height >= MANY_LINES else FEW_TEXT_LINES
    text = last_lines(tree.text, width, lines)
    gap = int(height >= MANY_LINES)
    room = height - 1 - lines - 2 * gap
    stage = tree.stage
    drawing = draw(picture_of(tree.round, marks, stage.judged), width, room, "auto", marks)
    grown = drawing.lines if stage.judged else grown_to(drawing, depths_of(tree.round), stage.drafted, marks)
    kept = title_of(tree.round, told=tree.whole)
    captions = (f"a recording of {tree.source} · {kept}", f"a recording · {kept}")
    caption = next((caption for caption in captions if len(caption) <= width), "a recording")
    blank: list[ScreenLine] = [[] for _ in range(height)]
    above = [[(caption, "dim")], *blank[:gap], *text, *blank[: lines - len(text) + gap]]
    return [*above, *grown, *blank][:height]
