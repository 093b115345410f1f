"""Animates rounds at reduced speed: first the tree, then the verdict one depth after another, then the text.

At full speed a round is added to the chat at once, and its rejected tokens are shown briefly behind the text.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from textual.timer import Timer

from specchat.engine.protocol.events import Died, Event, Failed, Finished, RoundDone
from specchat.engine.protocol.round_nodes import drafted_of, shared_nodes
from specchat.engine.protocol.text import one_line
from specchat.tui.services.context import AppServices
from specchat.tui.text.cells import ScreenLine
from specchat.tui.widgets.small_panels import Subtitle, TreeStrip
from specchat.tui.widgets.transcript import Transcript
from specchat.tui.widgets.tree_panel import TreePanel

DEPTH_S = 0.16
"""How long the verdict of one depth is shown before the next, if there is time."""

SHORTEST_DEPTH_S = 0.05
"""Shorter steps are not visible: several depths are then shown at once."""

SHORTEST_S = 0.2
"""A round with less time than this is not animated."""

REJECTED_S = 0.2
"""At full speed a rejected guess is shown this long, or until the next round."""


class RoundAnimation:
    """Holds back a round, and the events after it, until its animation has ended. There is no timer otherwise."""

    def __init__(
        self, context: AppServices, panel: TreePanel, strip: TreeStrip, subtitle: Subtitle, transcript: Transcript
    ) -> None:
        self._app, self._chat, self._speed, self._pump = context.app, context.chat, context.speed, context.pump
        self._tree_panel, self._tree_strip, self._subtitle, self._transcript = panel, strip, subtitle, transcript
        self._held: list[Event] = []
        self.depth = 0
        self._depths_per_step = 1
        self.timer: Timer | None = None
        self._newest_shown: RoundDone | None = None  # the newest round whose verdict was shown
        self._rejected_shown = False  # its rejected guess is on the screen

    @property
    def round(self) -> RoundDone | None:
        first = self._held[0] if self._held else None
        return first if isinstance(first, RoundDone) else None

    @property
    def finished(self) -> bool:
        """Whether the whole verdict has been shown, or the reply of the round no longer runs."""
        return self.round is None or self.depth > len(self.round.verdict.path) + 1 or not self._is_running(self.round)

    def release(self, events: Sequence[Event]) -> list[Event]:
        """The events that may be applied now. Only the newest round is animated; earlier ones are released at once."""
        waiting = [*self._held, *events]
        at = self._newest(waiting)
        overtaken = self.finished or any(isinstance(event, RoundDone) for event in events)
        animates = self._animated and self._speed.slow and not any(map(_ends_animation, events))
        if not animates or (overtaken and at is None):
            self._stop()
            return waiting
        if at is None:
            self._held = waiting
            return []
        self._start_timer(waiting[at:])
        return waiting[:at]

    def advance(self) -> None:
        """Show the verdict of the next depth; after the last one the round is added to the chat."""
        self.depth += self._depths_per_step
        if self.finished:
            self._pump.wake()
        else:
            self._show()

    def redraw(self) -> None:
        """Draw the animated round, or the rejected guess of the last one, after everything else was drawn."""
        rounds = self._chat.rounds
        if not self.finished:
            self._show()
        elif rounds and rounds[-1] is not self._newest_shown:
            self._newest_shown = rounds[-1]
            self._show_rejected(self._newest_shown)
        elif self._rejected_shown and (self._chat.running is None or self._pump.is_due("rejected", REJECTED_S)):
            self._hide_rejected()

    def _show_rejected(self, round: RoundDone) -> None:
        self._hide_rejected()
        if line := rejected_guess(round) if self._animated and self._is_running(round) else []:
            self._rejected_shown = True
            self._set_preview(line, within=True)
            self._pump.mark_drawn("rejected", REJECTED_S)

    def _hide_rejected(self) -> None:
        if self._rejected_shown:
            self._rejected_shown = False
            self._set_preview([])

    @property
    def _animated(self) -> bool:
        return self._app.animation_level != "none"

    def _newest(self, waiting: Sequence[Event]) -> int | None:
        """The index of the newest round that is not animated yet; None if there is none, or no time for it."""
        rounds = [at for at, event in enumerate(waiting) if isinstance(event, RoundDone)]
        if not rounds or (self._held and rounds[-1] == 0):
            return None
        newest = waiting[rounds[-1]]
        assert isinstance(newest, RoundDone), "a round stands there"
        return rounds[-1] if self._is_running(newest) and self._display_s(waiting) >= SHORTEST_S else None

    def _is_running(self, round: RoundDone) -> bool:
        running = self._chat.running
        return running is not None and running.id == round.id

    def _display_s(self, waiting: Sequence[Event]) -> float:
        """How long the newest round may be shown: the time since the round before it."""
        rounds = [event for event in [*self._chat.rounds, *waiting] if isinstance(event, RoundDone)][-2:]
        apart_s = rounds[-1].at_s - (rounds[0].at_s if len(rounds) > 1 and rounds[0].id == rounds[-1].id else 0.0)
        return self._speed.display_s(apart_s)

    def _start_timer(self, kept: list[Event]) -> None:
        self._stop()
        self._held, self.depth = kept, 0
        self._newest_shown = self.round
        assert self.round is not None, "the held events begin with a round"
        depths, time_s = len(self.round.verdict.path) + 2, 0.8 * self._display_s(kept)
        depth_s = max(SHORTEST_DEPTH_S, min(DEPTH_S, time_s / depths))
        self._depths_per_step = max(1, math.ceil(depths * depth_s / time_s))
        self.timer = self._app.set_interval(depth_s, self.advance)
        self._show()

    def _show(self) -> None:
        round = self.round
        assert round is not None, "a round is animated only while it is held"
        if not self._chat.shown_rounds.looks_back:
            self._tree_panel.reveal(round, self.depth)
        self._tree_strip.reveal(round, self.depth)
        self._set_preview(preview(round, self.depth))

    def _stop(self) -> None:
        if self.timer is not None:
            self.timer.stop()
            self.timer = None
            self._set_preview([])
        self._held = []

    def _set_preview(self, runs: ScreenLine, *, within: bool = False) -> None:
        for view in self._transcript.unfinished_replies():
            view.set_preview(runs, within=within)
        self._subtitle.set_preview(runs)


def _ends_animation(event: Event) -> bool:
    return isinstance(event, Died | Failed) or (isinstance(event, Finished) and event.stop == "cancelled")


def preview(round: RoundDone, upto: int) -> ScreenLine:
    """The preview while the verdict is shown down to depth `upto`.

    The accepted tokens so far, then the most likely guess: pending, or struck out once it was rejected. The bonus token
    follows after the path.
    """
    path, best = round.verdict.path, best_path(round)
    common = shared_nodes(path, best)
    line: ScreenLine = [(_shown(round, node), "drafted") for node in path[:upto]]
    if upto <= common:
        return line + [(_shown(round, node), "pending") for node in best[upto:]]
    if upto == common + 1 and common < len(best):
        line.insert(common, (_shown(round, best[common]), "rejected"))
    if upto > len(path) and round.pieces and round.pieces[-1].origin == "target":
        line.append((one_line(round.pieces[-1].text), "target"))
    return line


def rejected_guess(round: RoundDone) -> ScreenLine:
    """The most likely guess in place of the bonus token, struck out; empty where there was none."""
    path = round.verdict.path
    guess = "".join(_shown(round, node) for node in best_path(round, path[-1] if path else 0)).strip()
    return [(" ✕", "crossed"), (guess, "rejected")] if guess and round.verdict.bonus is not None else []


def best_path(round: RoundDone, node: int = 0) -> list[int]:
    """The path down from this node along the children that the drafter held most likely."""
    likely = drafted_of(round)
    children: dict[int, list[int]] = {}
    for child, parent in enumerate(round.tree.parents):
        if 0 <= parent < child:
            children.setdefault(parent, []).append(child)
    path: list[int] = []
    while node in children:
        node = max(children[node], key=lambda child: likely.get(child, 0.0))  # the first of equals
        path.append(node)
    return path


def _shown(round: RoundDone, node: int) -> str:
    return one_line(round.tree.texts[node])
