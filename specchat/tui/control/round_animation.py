"""Rounds told slowly: laid out at once, judged depth by depth, and only then part of the chat.

At full speed a round is part of the chat at once, and what fell in it is seen for a moment behind the text.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from textual.timer import Timer

from specchat.engine.protocol.events import Died, Event, Failed, Finished, RoundDone
from specchat.tui.control.event_pump import EventPump
from specchat.tui.control.playback_speed import PlaybackSpeed
from specchat.tui.draw.draft_preview import fallen, ghost
from specchat.tui.ports import AppPorts
from specchat.tui.state.session import Chat
from specchat.tui.text.cells import Row
from specchat.tui.widgets.chat_views import ChatViews

DEPTH_S = 0.16
"""How long the verdict of one depth is looked at before the next, if there is time."""

SHORTEST_DEPTH_S = 0.05
"""Less cannot be seen: depths are then told several at once."""

SHORTEST_S = 0.2
"""A round for which there is less time is shown whole."""

FALLEN_S = 0.2
"""At full speed a guess that fell is seen no longer than this, and only until the next round."""


class RoundAnimation:
    """Keeps a round back until it has been told; what follows it waits behind it. Idle, it costs nothing."""

    def __init__(self, chat: Chat, views: ChatViews, speed: PlaybackSpeed, pump: EventPump, ports: AppPorts) -> None:
        self._chat, self._views, self._speed, self._pump, self._ports = chat, views, speed, pump, ports
        self._kept: list[Event] = []
        self._depth = 0
        self._stride = 1  # depths told at once
        self._timer: Timer | None = None
        self._seen: RoundDone | None = None  # the newest round whose verdict was seen
        self._fell = False  # what fell in it is on the screen

    @property
    def round(self) -> RoundDone | None:
        """The round that is being told."""
        first = self._kept[0] if self._kept else None
        return first if isinstance(first, RoundDone) else None

    @property
    def told(self) -> bool:
        """Whether its whole verdict has been seen, or nobody wants to see it any more."""
        return self.round is None or self._depth > len(self.round.verdict.path) + 1 or not self._heard(self.round)

    def due(self, events: Sequence[Event]) -> list[Event]:
        """What may be applied now. Only the newest round is told slowly; whatever it overtakes is due at once."""
        waiting = [*self._kept, *events]
        at = self._newest(waiting)
        overtaken = self.told or any(isinstance(event, RoundDone) for event in events)
        if not self._slowly or any(_final(event) for event in events) or (overtaken and at is None):
            self._stop()
            return waiting
        if at is None:
            self._kept = waiting
            return []
        self._begin(waiting[at:])
        return waiting[:at]

    def advance(self) -> None:
        """Let the verdict of one depth more be seen; after the last one the round is part of the chat."""
        self._depth += self._stride
        if self.told:
            self._pump.wake()
        else:
            self._show()

    def again(self) -> None:
        """Everything else has been drawn anew: so is the round that is being told, or what fell in the last one."""
        rounds = self._chat.rounds
        if not self.told:
            self._show()
        elif rounds and rounds[-1] is not self._seen:
            self._seen = rounds[-1]
            self._fall(self._seen)
        elif self._fell and self._pump.due("ghost", FALLEN_S):
            self._fell = False
            self._trail([])

    def _fall(self, round: RoundDone) -> None:
        row = fallen(round) if self._animated and self._heard(round) else []
        self._fell = bool(row)
        if self._fell:
            self._trail(row, within=True)
            self._pump.drawn("ghost", FALLEN_S)

    @property
    def _animated(self) -> bool:
        return self._ports.animated()

    @property
    def _slowly(self) -> bool:
        return self._animated and self._speed.slow

    def _newest(self, waiting: Sequence[Event]) -> int | None:
        """Where the newest round stands that is not being told yet; None if there is none, or no time for it."""
        rounds = [at for at, event in enumerate(waiting) if isinstance(event, RoundDone)]
        if not rounds or (self._kept and rounds[-1] == 0):
            return None
        newest = waiting[rounds[-1]]
        assert isinstance(newest, RoundDone), "a round stands there"
        return rounds[-1] if self._heard(newest) and self._time_s(waiting) >= SHORTEST_S else None

    def _heard(self, round: RoundDone) -> bool:
        """Whether it belongs to the reply that is being written."""
        running = self._chat.running
        return running is not None and running.id == round.id

    def _time_s(self, waiting: Sequence[Event]) -> float:
        """How long the newest round may be looked at: as long as it took to come."""
        rounds = [event for event in [*self._chat.rounds, *waiting] if isinstance(event, RoundDone)][-2:]
        apart_s = rounds[-1].at_s - (rounds[0].at_s if len(rounds) > 1 and rounds[0].id == rounds[-1].id else 0.0)
        return self._speed.time_s(apart_s)

    def _begin(self, kept: list[Event]) -> None:
        self._stop()
        self._kept, self._depth = kept, 0
        self._seen = self.round
        assert self.round is not None, "what is kept begins with a round"
        depths, time_s = len(self.round.verdict.path) + 2, 0.8 * self._time_s(kept)
        depth_s = max(SHORTEST_DEPTH_S, min(DEPTH_S, time_s / depths))
        self._stride = max(1, math.ceil(depths * depth_s / time_s))
        self._timer = self._ports.set_interval(depth_s, self.advance)
        self._show()

    def _show(self) -> None:
        round = self.round
        assert round is not None, "a round is told only while it is kept"
        self._views.tree_panel.reveal(round, self._depth)
        self._views.tree_strip.reveal(round, self._depth)
        self._trail(ghost(round, self._depth))

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.stop()
            self._timer = None
            self._trail([])
        self._kept = []

    def _trail(self, runs: Row, *, within: bool = False) -> None:
        for view in self._views.transcript.growing():
            view.trail(runs, within=within)


def _final(event: Event) -> bool:
    """After these nobody waits for a round to be told."""
    return isinstance(event, Died | Failed) or (isinstance(event, Finished) and event.stop == "cancelled")
