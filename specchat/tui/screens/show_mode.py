"""Show mode: the tree fills the window, with settings that branch and one round a second; leaving it restores both."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specchat.errors import UsageError
from specchat.tui.screens.chat_view import ChatView
from specchat.tui.screens.replies import Replies
from specchat.tui.screens.side_panel import SidePanel

GAP_S = 1.0
"""Seconds between two rounds."""

SHAPE = {"policy": "best_first", "rule": "follow", "controller": "fixed", "width": 3, "depth": 8, "nodes": 24}
"""Settings with which trees branch."""

UNTRAINED = "token_recycling"
"""The drafter of a pair that has neither a draft model nor a trained drafter. In three new stories on smol it had 24
guesses in 41 % of all rounds, but in 5 of the first 60; `hydra` had them in every round that was not plain.
"""

BY_TRANSLATION = "cross_vocabulary"
"""Stays where it is in use: the pair's draft model may have other tokens than the target."""

TITLE = "for looking, not for speed · "


class ShowMode:
    """Turns show mode on and off. A recording is only enlarged: its trees and its speed are what they are."""

    def __init__(self, view: ChatView, side_panel: SidePanel, replies: Replies) -> None:
        self._view, self._chat, self._app = view, view.chat, view.context.app
        self._session, self._speed = view.context.session, view.context.speed
        self._side_panel, self._replies = side_panel, replies
        self.active = False
        self._pair = ""
        self._changed: dict[str, tuple[Any, Any]] = {}  # setting: (value before, value while it lasts)
        self._gap_before_s: float | None = None

    async def enter(self, prompt: str = "") -> None:
        """Fill the window with the tree, and ask this; a mode that is on stays on.

        Raises UsageError while there is no pair that could write.
        """
        if not self.active:
            if self._session.player is None and self._chat.engine.phase != "ready":
                raise UsageError("no pair is ready; its trees can be shown once it is loaded")
            self.active = True
            self._side_panel.hide_settings()
            if self._session.player is None and self._view.transcript.has_focus:
                self._view.prompt.focus()  # the chat will be hidden
            self._view.set_class(True, "-show")
            if self._session.player is None:
                engine = self._chat.engine
                wanted = {"drafter": self._drafter(), **SHAPE}
                self._pair = engine.pair
                before = engine.settings.get
                self._changed = {name: (before(name), value) for name, value in wanted.items() if before(name) != value}
                self._send({name: value for name, (_, value) in self._changed.items()})
                self._gap_before_s = self._speed.gap_s
                self._view.tree_title = TITLE
                self._speed.slow_down_to(GAP_S)
        if prompt:
            await self._replies.ask(prompt)
        leave = self._app.key_hint("show", "leaves", " · ")
        idle = self._chat.running is None and not prompt
        self._app.say(f"ask something, and its trees grow here{leave}" if idle else "")
        self._app.redraw()

    def leave(self) -> bool:
        """Restore the window, the settings and the speed; False if the mode was not on."""
        if not self.active:
            return False
        self.active = False
        self._view.set_class(False, "-show")
        self._view.tree_title = ""
        engine = self._chat.engine
        if engine.pair == self._pair:
            self._send(self._to_give_back(engine.chosen))
        elif not engine.pair:  # it died: these are for its next start
            engine.keep(self._to_give_back(engine.wanted))
        self._pair, self._changed = "", {}
        if self._gap_before_s is not None:
            self._speed.slow_down_to(self._gap_before_s)
            self._gap_before_s = None
        if self._app.focused is None:  # a recording's keys were those of the chat, which was hidden
            self._view.focus_chat()
        self._app.say("")
        self._app.redraw()
        return True

    async def toggle(self, prompt: str) -> None:
        """Enter, or leave; a prompt is asked in show mode in any case."""
        if prompt or not self.leave():
            await self.enter(prompt)

    def _drafter(self) -> str:
        """One that has guesses from the first round on, if the pair has any."""
        engine = self._chat.engine
        assert engine.ready is not None, "an engine that is ready has a pair"
        if engine.settings.get("drafter") == BY_TRANSLATION:
            return BY_TRANSLATION
        return "draft_model" if engine.ready.draft else next(iter(engine.ready.trained), UNTRAINED)

    def _to_give_back(self, now: Mapping[str, Any]) -> dict[str, Any]:
        """What was changed here and still has its value, as it was before."""
        return {name: old for name, (old, value) in self._changed.items() if now.get(name) == value}

    def _send(self, settings: dict[str, Any]) -> None:
        if settings:
            self._session.change_all(settings)
