"""The playback speed of rounds, of a live reply or a recording: held, single steps, slow motion, full speed."""

from __future__ import annotations

import math

from specchat.engine.client.replay import FASTEST, SLOWEST
from specchat.engine.protocol.commands import Pace
from specchat.errors import UsageError
from specchat.tui.services.engine_session import EngineSession
from specchat.tui.services.event_pump import EventPump
from specchat.tui.services.terminal_app import TerminalApp
from specchat.tui.tree.panel_lines import pace_of

GAPS_S = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0)
"""Seconds between the rounds of a live reply, from full speed to the slowest."""


class PlaybackSpeed:
    """Controls the running reply or recording. The speed stays for the next reply; a hold does not."""

    def __init__(self, app: TerminalApp, session: EngineSession, pump: EventPump) -> None:
        self.held = False
        self.gap_s = 0.0
        self._app, self._chat, self._session, self._pump = app, app.chat, session, pump

    @property
    def slow(self) -> bool:
        """Whether rounds come slowly enough to be animated."""
        if (player := self._session.player) is not None:
            return player.paused or player.speed < 1
        return self.held or self.gap_s > 0

    def display_s(self, apart_s: float) -> float:
        """How long a round is shown that was decoded `apart_s` after the one before it."""
        if (player := self._session.player) is not None:
            return math.inf if player.paused else apart_s / player.speed
        return math.inf if self.held else self.gap_s

    @property
    def halted(self) -> bool:
        """Whether no further round comes until the user acts."""
        player = self._session.player
        return self._chat.running is None or (self.held if player is None else player.paused)

    @property
    def caption(self) -> str:
        """The speed for the tree's title; empty for a recording, whose speed the replay bar shows."""
        if self._session.player is not None or self._chat.running is None:
            return ""
        return pace_of(self.held, self.gap_s)

    def begin(self, id: int) -> None:
        self.held = False
        if self.gap_s:
            self._session.send(Pace(id, gap_s=self.gap_s))

    def hold(self) -> None:
        if (player := self._session.player) is not None:
            player.resume() if player.paused else player.pause()
        else:
            self._require_reply()
            self.held = not self.held
            self._send_pace()
            keys = self._app.key_of
            held = f"held · {keys('pace.step')} does one round, {keys('pace.hold')} goes on; in the tree arrows walk"
            self._app.say(held if self.held else "")
        self._redraw()

    def step(self, rounds: int = 1) -> None:
        if (player := self._session.player) is not None:
            for _ in range(rounds):
                player.step()
        else:
            self._require_reply()
            self.held = True
            self._send_pace(rounds)
        self._redraw()

    def change_by(self, by: int) -> None:
        if (player := self._session.player) is not None:
            player.faster(0.5 if by > 0 else 2.0)
        else:
            at = min(range(len(GAPS_S)), key=lambda index: abs(GAPS_S[index] - self.gap_s)) + by
            self.slow_down_to(GAPS_S[max(0, min(len(GAPS_S) - 1, at))])
        self._redraw()

    def set_speed(self, text: str) -> None:
        """Set the speed: `full`, rounds per second of a live reply, or times the recorded speed."""
        player = self._session.player
        try:
            wanted = 0.0 if text == "full" else float(text.removesuffix("×").removesuffix("x"))
        except ValueError:
            wanted = -1.0
        if text != "full" and not 0 < wanted <= 1000:
            what = "rounds per second" if player is None else "times the recorded speed"
            raise UsageError(f"/speed takes full or a number above 0 ({what}), not {text!r}")
        if player is not None:
            player.faster(min(FASTEST, max(SLOWEST, wanted or 1.0)) / player.speed)
        else:
            self.slow_down_to(1 / wanted if wanted else 0.0)
        self._redraw()

    def describe(self) -> str:
        if (player := self._session.player) is not None:
            return f"speed: {player.speed:g}× the recorded one"
        return f"speed: {pace_of(False, self.gap_s).removesuffix(' · ').removeprefix('▸ ') or 'full'}"

    def rewind(self) -> None:
        if self._session.player is not None:
            self._session.player.rewind()
            self._redraw()

    def _redraw(self) -> None:
        """Draw the new speed. A tick follows, because held back rounds may be released now."""
        self._app.redraw()
        self._pump.wake()

    def slow_down_to(self, gap_s: float) -> None:
        """Write live replies with at least this time between two rounds; 0 is full speed."""
        self.gap_s = gap_s
        if self._chat.running is not None and not self.held:
            self._send_pace()
        self._app.say(self.describe())

    def _require_reply(self) -> None:
        if self._chat.running is None:
            raise UsageError("nothing is being written that could be held")

    def _send_pace(self, rounds: int = 0) -> None:
        if (running := self._chat.running) is not None:
            self._session.send(Pace(running.id, hold=self.held, rounds=rounds, gap_s=self.gap_s))
