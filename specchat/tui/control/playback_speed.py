"""The playback speed of rounds, of a live reply or a recording: held, single steps, slow motion, full speed."""

from __future__ import annotations

import math
from collections.abc import Callable

from specchat.engine.client.replay import FASTEST, SLOWEST
from specchat.engine.protocol.commands import Pace
from specchat.errors import UsageError
from specchat.tui.control.engine_session import EngineSession
from specchat.tui.ports import AppPorts
from specchat.tui.state.chat import Chat
from specchat.tui.tree.panel_lines import pace_of
from specchat.tui.view_ports import TreePanelPort

GAPS_S = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0)
"""Seconds between the rounds of a live reply, from full speed to the slowest."""


class PlaybackSpeed:
    """Controls the running reply or recording. The speed stays for the next reply; a hold does not."""

    def __init__(
        self, chat: Chat, session: EngineSession, tree_panel: TreePanelPort, ports: AppPorts, wake: Callable[[], None]
    ) -> None:
        """`wake` asks for another tick."""
        self.held = False
        self.gap_s = 0.0
        self._chat, self._session, self._tree_panel = chat, session, tree_panel
        self._ports, self._wake = ports, wake

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

    def can(self, what: str) -> bool:
        """Whether this action applies: a reply or recording runs, and the focused widget leaves the key to it."""
        player, focused = self._session.player, self._ports.focused()
        if focused is not None and not focused.has_class("-paces"):
            return False
        if what == "rewind":
            return player is not None
        return what in ("slower", "faster") or player is not None or self._chat.running is not None

    async def act(self, what: str) -> None:
        """Do the action of a key."""
        match what:
            case "hold":
                self.hold()
            case "step":
                self.step()
            case "slower" | "faster":
                self.change_by(1 if what == "slower" else -1)
            case "rewind" if (player := self._session.player) is not None:
                await self._ports.new_chat()
                player.rewind()
                self._redraw()

    def begin(self, id: int) -> None:
        """Prepare for reply `id`, which is requested next."""
        self.held = False
        if self.gap_s:
            self._send(Pace(id, gap_s=self.gap_s))

    def hold(self) -> None:
        """Hold the rounds, or resume them."""
        if (player := self._session.player) is not None:
            player.resume() if player.paused else player.pause()
        else:
            self._require_reply()
            self.held = not self.held
            self._send_pace()
            keys = self._ports.key_of
            held = f"held · {keys('pace.step')} does one round, {keys('pace.hold')} goes on; in the tree arrows walk"
            self._ports.notify(held if self.held else "")
        self._redraw(leave=not self.halted)

    def step(self, rounds: int = 1) -> None:
        """Decode this many rounds, then hold."""
        if (player := self._session.player) is not None:
            for _ in range(rounds):
                player.step()
        else:
            self._require_reply()
            self.held = True
            self._send_pace(rounds)
        self._redraw(leave=True)

    def change_by(self, by: int) -> None:
        """Slower (1) or faster (−1)."""
        if (player := self._session.player) is not None:
            player.faster(0.5 if by > 0 else 2.0)
        else:
            at = min(range(len(GAPS_S)), key=lambda index: abs(GAPS_S[index] - self.gap_s)) + by
            self.slow_down_to(GAPS_S[max(0, min(len(GAPS_S) - 1, at))])
        self._redraw()

    def set_speed(self, text: str) -> None:
        """Set the speed: `full`, rounds per second of a live reply, or times the recorded speed."""
        player = self._session.player
        if text == "full":
            wanted = 0.0
        else:
            try:
                wanted = float(text.removesuffix("×").removesuffix("x"))
            except ValueError:
                wanted = -1.0
            if not 0 < wanted <= 1000:
                what = "rounds per second" if player is None else "times the recorded speed"
                raise UsageError(f"/speed takes full or a number above 0 ({what}), not {text!r}")
        if player is not None:
            player.faster(min(FASTEST, max(SLOWEST, wanted or 1.0)) / player.speed)
        else:
            self.slow_down_to(1 / wanted if wanted else 0.0)
        self._redraw()

    def describe(self) -> str:
        """The speed in words."""
        if (player := self._session.player) is not None:
            return f"speed: {player.speed:g}× the recorded one"
        return f"speed: {pace_of(False, self.gap_s).removesuffix(' · ').removeprefix('▸ ') or 'full'}"

    def reply_ended(self) -> None:
        """The reply has ended: the next one is not held."""
        self.held = False

    def _redraw(self, leave: bool = False) -> None:
        """Draw the new speed. A tick follows, because held back rounds may be released now."""
        if leave:
            self._tree_panel.action_leave()
        self._ports.redraw()
        self._wake()

    def slow_down_to(self, gap_s: float) -> None:
        """Write live replies with at least this time between two rounds; 0 is full speed."""
        self.gap_s = gap_s
        if self._chat.running is not None and not self.held:
            self._send_pace()
        self._ports.notify(self.describe())

    def _require_reply(self) -> None:
        if self._chat.running is None:
            raise UsageError("nothing is being written that could be held")

    def _send_pace(self, rounds: int = 0) -> None:
        running = self._chat.running
        if running is not None:
            self._send(Pace(running.id, hold=self.held, rounds=rounds, gap_s=self.gap_s))

    def _send(self, pace: Pace) -> None:
        self._session.send(pace)
