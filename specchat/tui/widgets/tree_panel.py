"""The panel that draws the token tree of the last verified round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual.binding import BindingType
from textual.events import Click, MouseMove
from textual.message import Message
from textual.reactive import reactive

from specchat.engine.protocol.events import RoundDone
from specchat.tui.state.reply_figures import Figures
from specchat.tui.text.cells import ScreenLine, paragraph
from specchat.tui.text.key_names import bind
from specchat.tui.tree import UNICODE, Drawing, Marks, Mode, SteadyDrawing, fitting_mode, picture_of
from specchat.tui.tree.growing_tree import LOWEST, NARROWEST, GrowingTree, growing_tree_lines
from specchat.tui.tree.node_details import Step, neighbour
from specchat.tui.tree.panel_lines import (
    EARLIER,
    Ribbon,
    RoundColumns,
    best_round,
    earlier_rounds_lines,
    legend_lines,
    node_lines,
    ribbon,
    ribbon_height,
    summary_of,
    title_of,
)
from specchat.tui.widgets.painted_lines import PaintedLines

_ALL_FROM_LINES = 15
"""Lines of a panel that has room for the details of a node and the ribbon at once."""


class TreePanel(PaintedLines, can_focus=True):
    """The tree of one round, and below it the rounds before in brief.

    With the focus, keys select nodes: the selected round stays until the user leaves it, while the reply goes on.
    """

    DEFAULT_CSS = """
    TreePanel {
        height: 1fr; min-height: 3; padding: 0 1; border: round $border;
        border-title-color: $foreground 80%; border-subtitle-color: $accent;
        &:focus { border: round $primary; }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        bind("left", "walk('parent')", "to the token before", "tree.parent"),
        bind("right", "walk('child')", "to the token after", "tree.child"),
        bind("up", "walk('previous')", "to the guess above, at the same depth", "tree.previous"),
        bind("down", "walk('next')", "to the guess below, at the same depth", "tree.next"),
        bind("home", "walk('root')", "to the root", "tree.root"),
        bind("end", "walk('bonus')", "to the bonus", "tree.bonus"),
        bind("pageup", "turn(-1)", "to the round before", "tree.earlier"),
        bind("pagedown", "turn(1)", "to the round after", "tree.later"),
        bind("ctrl+pageup", "turn(-10)", "ten rounds back", "tree.earlier10"),
        bind("ctrl+pagedown", "turn(10)", "ten rounds on", "tree.later10"),
        bind("enter", "enter", "what else could stand there; goes on from it", "tree.alternatives"),
        bind("w", "what_if", "what the round would be under other settings", "tree.what_if"),
        bind("escape", "leave", "follow the rounds again", "tree.leave"),
    ]

    class FollowAsked(Message):
        """The user wants to see the newest reply again."""

    @dataclass
    class Entered(Message):
        """The user wants to see what else could stand at this node's place."""

        round: RoundDone
        node: int

    @dataclass
    class WhatIfAsked(Message):
        round: RoundDone  # to be seen under other settings

    mode: reactive[Mode] = reactive("auto")
    """How the tree is drawn; `auto` chooses by the size."""

    def __init__(self, marks: Marks = UNICODE, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._marks = marks
        self._rounds: Sequence[RoundDone] = ()
        self._frozen = False
        self._pace = self._empty = ""
        self._looks_back = False
        self._revealed: tuple[RoundDone, int] | None = None
        self._pinned: RoundDone | None = None
        self.chosen: int | None = None
        self._hovered: int | None = None
        self._steady = SteadyDrawing(self._marks)
        self.drawing = Drawing([], [])
        self._columns = RoundColumns()
        self._ribbon: Ribbon | None = None
        self._ribbon_line = 0
        self._rests = False
        self._temperature: float | None = None
        self._best: tuple[Sequence[RoundDone], int, int | None] = ((), 0, None)  # rounds, their number, the best one
        self._recording: GrowingTree | None = None
        self.entitle(title="tree")

    def watch_mode(self) -> None:
        self._steady = SteadyDrawing(self._marks)
        self.repaint()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """`leave` applies only while a node, a round or an earlier reply is selected."""
        return self.walking or self._looks_back if action == "leave" else True

    def on_mouse_move(self, event: MouseMove) -> None:
        """Show details of the node under the pointer, unless rounds are still coming."""
        offset = event.get_content_offset(self)
        still = self._frozen or self._pinned is not None
        self._hover(self.drawing.node_at(offset.x, offset.y) if offset and still else None)

    def on_leave(self) -> None:
        self._hover(None)

    def on_click(self, event: Click) -> None:
        if (offset := event.get_content_offset(self)) is None:
            return
        node = self.drawing.node_at(offset.x, offset.y)
        turned = self._ribbon.round_at(offset.x, offset.y - self._ribbon_line) if self._ribbon else None
        if node is not None and node == self.chosen:
            self.action_enter()
        elif node is not None:
            self.choose(node)
        elif turned is not None:
            self._turn_to(turned)

    def action_walk(self, step: Step) -> None:
        """Choose a neighbour of the chosen node; where none is chosen, an arrow begins with the path's first."""
        if (round := self.round) is not None:
            step = step if self.chosen is not None or step in ("root", "bonus") else "child"
            self.choose(neighbour(round, self.chosen or 0, step))

    def action_enter(self) -> None:
        """Open the place of the chosen node; where none is chosen, choose the path's first."""
        if (round := self.round) is not None and self.chosen is not None:
            self.post_message(self.Entered(round, self.chosen))
        else:
            self.action_walk("child")

    def action_what_if(self) -> None:
        if (round := self.round) is not None:
            self.post_message(self.WhatIfAsked(round))

    def action_turn(self, by: int) -> None:
        here = len(self._rounds) if self.round is None else self._place_of(self.round)
        at = by + (here if self._best_place is None else len(self._rounds) - 1)
        if at >= len(self._rounds):
            self.action_leave()
        else:
            self._turn_to(max(0, at))

    def action_leave(self) -> None:
        """Follow the rounds again; where none is selected, leave the earlier reply."""
        if self._looks_back and not self.walking:
            self.post_message(self.FollowAsked())
        self._pinned = self.chosen = self._hovered = None
        self._update_title()

    @property
    def walking(self) -> bool:
        return self._pinned is not None or self.chosen is not None

    @property
    def round(self) -> RoundDone | None:
        if self._pinned is not None:
            return self._pinned
        if self._revealed is not None:
            return self._revealed[0]
        if (best := self._best_place) is not None:
            return self._rounds[best]
        return self._rounds[-1] if self._rounds else None

    @property
    def _best_place(self) -> int | None:
        """The place of the reply's best round, where it rests on that; None where it shows the last one."""
        if not self._rests or self._pinned is not None or self._revealed is not None or len(self._rounds) < 2:
            return None
        rounds, count, best = self._best
        if rounds is not self._rounds or count != len(self._rounds):
            best = best_round(self._rounds)
            self._best = self._rounds, len(self._rounds), best
        return best

    def play(self, recording: GrowingTree | None) -> None:
        """Show this picture of a recording while there are no rounds; None: no longer."""
        if recording is not None or self._recording is not None:
            self._recording = recording
            self.repaint()

    @property
    def plays(self) -> bool:
        """Whether there is room for a recording, and nothing else to show."""
        roomy = self.size.width >= NARROWEST and self.size.height >= LOWEST
        return self.round is None and roomy and self.is_on_screen

    def show(
        self,
        rounds: Sequence[RoundDone],
        figures: Figures | None,
        *,
        frozen: bool = False,
        animating: bool = False,
        pace: str = "",
        looks_back: bool = False,
        rests: bool = False,
        ratio: bool = True,
        temperature: float | None = None,
        empty: str = "",
    ) -> None:
        """Show the last of a reply's rounds, those before it in brief, and the whole reply.

        Args:
            frozen: no further round comes until the user acts.
            animating: a further round is being animated, and `reveal` follows.
            looks_back: the reply is not the newest one.
            rests: the reply is over: its best round is shown instead of its last one.
            ratio: whether the speed-up is shown.
            temperature: the one that the target's tokens were drawn with; None where that does not tell a verdict.
            empty: what stands here where there are no rounds.
        """
        before = self.round
        another = rounds is not self._rounds and not any(round is self._pinned for round in rounds)
        if looks_back != self._looks_back or another:
            self._pinned = self.chosen = None
        self._rounds, self._frozen, self._pace, self._revealed = rounds, frozen, pace, None
        self._looks_back, self._rests, self._empty = looks_back, rests, empty
        self._temperature = temperature
        if self.round is not before:
            self._hovered = None
        if not rounds and not animating:
            self._pinned = self.chosen = self._hovered = None
        self.entitle(subtitle=summary_of(figures, ratio=ratio))
        self._update_title()

    def reveal(self, round: RoundDone, upto: int) -> None:
        """Show an animated round: its verdict down to this depth, with the same layout as the whole."""
        self._hovered = None
        self._revealed = (round, upto)
        self._update_title()

    def paint(self, width: int, height: int) -> list[ScreenLine]:
        """The tree; under it what is known about a node or the rounds before, the whole reply, and the legend."""
        self._ribbon = None
        if (round := self.round) is None:
            recorded = growing_tree_lines(self._recording, width, height, self._marks) if self._recording else []
            return recorded or paragraph(self._empty, width, "dim")
        upto = self._revealed[1] if self._revealed is not None and self._pinned is None else None
        picture = picture_of(round, self._marks, upto, self.chosen)

        def drawn(lines: int) -> Drawing:
            return self._steady.draw(round, picture, width, lines, self.mode, self.chosen)

        if fitting_mode(self.mode, width, height) == "strip":
            self.drawing = drawn(height)
            return self.drawing.lines
        about = self._details(round, width, height)
        last = legend_lines(picture, width, height, self._marks)
        if not about or height >= _ALL_FROM_LINES:
            last = [*self._ribbon_lines(width, height), *last]
        self.drawing = drawn(height - len(about) - len(last))
        lines = self.drawing.lines
        if not about:
            room = height - len(last) - max(len(lines), height // 2) - 1  # a small tree keeps half: less jumps
            at = self._place_of(round)
            before = self._rounds[max(0, at - EARLIER) : at]
            about = earlier_rounds_lines(before, width, height, self._marks, room=room)
        space = height - len(lines) - len(about) - len(last)
        self._ribbon_line = height - len(last)
        return [*lines, *([] for _ in range(space)), *about, *last]

    def _ribbon_lines(self, width: int, height: int) -> list[ScreenLine]:
        """The whole reply, and where in it the selected round is."""
        count = len(self._rounds)
        if not (lines := ribbon_height(height, width, count)):
            return []
        shown = count if self._pinned is None else self._place_of(self._pinned)
        columns = self._columns.of(self._rounds)
        self._ribbon = ribbon(columns, width, lines, shown if shown < count else None, self._columns.roles())
        return self._ribbon.lines

    def _details(self, round: RoundDone, width: int, height: int) -> list[ScreenLine]:
        node = self._hovered if self._hovered is not None else self.chosen
        if node is None or node > len(round.tree.tokens):
            return []
        roomy = self.chosen is not None
        return node_lines(round, node, width, height, self._marks, roomy=roomy, temperature=self._temperature)

    def _place_of(self, round: RoundDone) -> int:
        """Where in the reply the round is; the end of the reply for a round that is not in it."""
        rounds = self._rounds
        return next((at for at in reversed(range(len(rounds))) if rounds[at] is round), len(rounds))

    def _turn_to(self, at: int) -> None:
        self._pinned, self._revealed = self._rounds[at], None
        self.chosen = None if self.chosen is None else neighbour(self._pinned, 0, "child")
        self._update_title()

    def choose(self, node: int) -> None:
        self._pinned, self.chosen, self._hovered = self.round, node, None
        self._update_title()

    def _hover(self, node: int | None) -> None:
        if node != self._hovered:
            self._hovered = node
            self.repaint()

    def _update_title(self) -> None:
        round = self.round
        if self._pinned is not None:
            kept = title_of(round).removesuffix(" guesses")  # short enough for a narrow panel
            at = self._place_of(self._pinned)
            number = at if at < len(self._rounds) else self._pinned.index  # of a round that is still being animated
            self.entitle(title=f"round {number + 1} · {kept}")
        elif self._best_place is not None and round is not None:
            kept = f"best of {len(self._rounds):,}: kept {len(round.verdict.path)}"
            self.entitle(title=self._pace + kept)
        else:
            self.entitle(title=self._pace + title_of(round, told=self._revealed is None))
        self.repaint()
