"""How fast rounds are shown: held, one by one, in slow motion, at full speed; of a live reply or of a recording."""

from __future__ import annotations

import math
from collections.abc import Callable

from specchat.engine.near.replay import FASTEST, SLOWEST
from specchat.engine.protocol.commands import Pace
from specchat.errors import UsageError
from specchat.tui.control.engine_session import EngineSession
from specchat.tui.draw.tree_captions import pace_of
from specchat.tui.ports import AppPorts
from specchat.tui.state.session import Chat
from specchat.tui.widgets.tree_panel import TreePanel

GAPS_S = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0)
"""Seconds between the rounds of a live reply, from full speed to the slowest."""


class PlaybackSpeed:
    """Steers whatever is being written or played. A live reply's speed stays for the next one; a hold does not."""

    def __init__(
        self, chat: Chat, session: EngineSession, tree_panel: TreePanel, ports: AppPorts, wake: Callable[[], None]
    ) -> None:
        """`wake` asks for another tick."""
        self.held = False
        self.gap_s = 0.0
        self._chat, self._session, self._tree_panel = chat, session, tree_panel
        self._ports, self._wake = ports, wake

    @property
    def slow(self) -> bool:
        """Whether there is time to watch a round."""
        if (player := self._session.player) is not None:
            return player.paused or player.speed < 1
        return self.held or self.gap_s > 0

    def time_s(self, apart_s: float) -> float:
        """How long a round may be looked at that came so long after the one before it, as recorded."""
        if (player := self._session.player) is not None:
            return math.inf if player.paused else apart_s / player.speed
        return math.inf if self.held else self.gap_s

    @property
    def still(self) -> bool:
        """Whether nothing moves until somebody says so."""
        player = self._session.player
        return self._chat.running is None or (self.held if player is None else player.paused)

    @property
    def words(self) -> str:
        """The pace as the tree's title says it; a recording has its own line for that."""
        if self._session.player is not None or self._chat.running is None:
            return ""
        return pace_of(self.held, self.gap_s)

    def can(self, what: str) -> bool:
        """Whether there is something to hold, step or play again, and the keys are meant for it."""
        player, focused = self._session.player, self._ports.focused()
        if focused is not None and not focused.has_class("-paces"):
            return False
        if what == "rewind":
            return player is not None
        return what in ("slower", "faster") or player is not None or self._chat.running is not None

    async def act(self, what: str) -> None:
        """Do what a key says."""
        match what:
            case "hold":
                self.hold()
            case "step":
                self.step()
            case "slower" | "faster":
                self.shift(1 if what == "slower" else -1)
            case "rewind" if (player := self._session.player) is not None:
                await self._ports.new_chat()
                player.rewind()
                self._look()

    def begin(self, id: int) -> None:
        """Reply `id` is about to be asked for."""
        self.held = False
        if self.gap_s:
            self._send(Pace(id, gap_s=self.gap_s))

    def hold(self) -> None:
        """Hold the rounds, or let them go on."""
        if (player := self._session.player) is not None:
            player.resume() if player.paused else player.pause()
        else:
            self._demand_reply()
            self.held = not self.held
            self._tell()
            keys = self._ports.key_of
            held = f"held · {keys('pace.step')} does one round, {keys('pace.hold')} goes on; in the tree arrows walk"
            self._ports.notify(held if self.held else "")
        self._look(leave=not self.still)

    def step(self, rounds: int = 1) -> None:
        """Do so many rounds and hold."""
        if (player := self._session.player) is not None:
            for _ in range(rounds):
                player.step()
        else:
            self._demand_reply()
            self.held = True
            self._tell(rounds)
        self._look(leave=True)

    def shift(self, by: int) -> None:
        """Slower (1) or faster (−1)."""
        if (player := self._session.player) is not None:
            player.faster(0.5 if by > 0 else 2.0)
        else:
            at = min(range(len(GAPS_S)), key=lambda index: abs(GAPS_S[index] - self.gap_s)) + by
            self._slow_down_to(GAPS_S[max(0, min(len(GAPS_S) - 1, at))])
        self._look()

    def speed(self, text: str) -> None:
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
                raise UsageError(f"/speed {text!r}: wanted is full, or a number above 0 ({what})")
        if player is not None:
            player.faster(min(FASTEST, max(SLOWEST, wanted or 1.0)) / player.speed)
        else:
            self._slow_down_to(1 / wanted if wanted else 0.0)
        self._look()

    def describe(self) -> str:
        """The speed in words."""
        if (player := self._session.player) is not None:
            return f"speed: {player.speed:g}× the recorded one"
        return f"speed: {pace_of(False, self.gap_s).removesuffix(' · ').removeprefix('▸ ') or 'full'}"

    def ended(self) -> None:
        """No reply runs any more."""
        self.held = False

    def _look(self, leave: bool = False) -> None:
        """Draw the new pace, and what moves on; rounds that were told slowly may be due at once."""
        if leave:
            self._tree_panel.action_leave()
        self._ports.redraw()
        self._wake()

    def _slow_down_to(self, gap_s: float) -> None:
        self.gap_s = gap_s
        if self._chat.running is not None and not self.held:
            self._tell()
        self._ports.notify(self.describe())

    def _demand_reply(self) -> None:
        if self._chat.running is None:
            raise UsageError("nothing is being written that could be held")

    def _tell(self, rounds: int = 0) -> None:
        running = self._chat.running
        if running is not None:
            self._send(Pace(running.id, hold=self.held, rounds=rounds, gap_s=self.gap_s))

    def _send(self, pace: Pace) -> None:
        self._session.send(pace)
