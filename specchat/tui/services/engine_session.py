"""The session with the engine: start it, load, change settings, stop, play a recording, close it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from specchat.engine.client.client import Engine, Link
from specchat.engine.client.replay import Player
from specchat.engine.protocol.commands import Cancel, Command, Generate
from specchat.errors import SpecchatError, UsageError
from specchat.tui.services.event_pump import EventPump
from specchat.tui.services.terminal_app import TerminalApp
from specchat.tui.state.engine_state import change_of
from specchat.tui.system.processes import EnginePriority, wants_every_core
from specchat.tui.text import numbers

LinkFactory = Callable[[Callable[[], None]], Link]
"""Starts an engine (or whatever answers like one); gets the function to call when events arrived."""


class EngineSession:
    def __init__(self, app: TerminalApp, pump: EventPump, factory: LinkFactory) -> None:
        self.link: Link | None = None
        self.player: Player | None = None
        self._app, self._chat, self._pump, self._factory = app, app.chat, pump, factory
        self._priority = EnginePriority()

    @property
    def engine_pid(self) -> int:
        """0 for an engine on another machine."""
        hello, link = self._chat.engine.hello, self.link
        return link.pid if isinstance(link, Engine) and hello is not None and hello.pid == link.pid else 0

    def lower_priority_if_shared(self) -> None:
        """Draw less, and at a lower priority, if the engine of the loaded pair uses every core of this machine."""
        ready = self._chat.engine.ready
        shared = self.engine_pid > 0 and ready is not None and wants_every_core(ready)
        self._pump.shared = shared
        if shared:
            self._priority.lower_priority()

    def send(self, command: Command) -> bool:
        """Send this to the engine; False if there is none."""
        if self.link is not None:
            if isinstance(command, Generate):
                self.send_held(all=True)
            self.link.send(command)
        return self.link is not None

    async def reconnect(self) -> None:
        if self._chat.engine.phase == "failed":
            await self.load({})
        elif self._chat.engine.phase == "dead":
            await self.connect()
        else:
            self._app.say("the engine is running")

    async def load(self, changes: dict[str, Any]) -> None:
        """Load a pair, or the same one with other settings; a running reply is stopped first."""
        if self.link is None or self._chat.engine.phase == "dead":
            self._chat.engine.wanted.update(changes)
            await self.connect()
            return
        self._cancel_reply()
        self.link.send(self._chat.engine.load(changes))
        self._app.say("")
        self._app.redraw()

    def change(self, name: str, value: Any) -> None:
        """Change one live setting; refused while a pair is being loaded, kept for the next start without an engine."""
        engine = self._chat.engine
        if engine.phase == "loading":
            self._app.say("settings can be changed once the pair is loaded", "warn")
        elif engine.phase == "ready":
            if self.link is not None and (command := engine.choose(name, value)) is not None:
                self.link.send(command)
        else:
            engine.keep(change_of(name, value))
            how = self._app.key_hint("restart", "loads it", " · ") if engine.phase != "starting" else ""
            self._app.say(f"{name} = {numbers.setting(value)} applies once a pair is loaded{how}")
            self._app.redraw()

    def change_all(self, settings: dict[str, Any]) -> None:
        """Change several live settings at once: all of them, or none where they do not go together."""
        if self.link is not None:
            self.link.send(self._chat.engine.change(settings))

    def send_held(self, *, all: bool = False) -> None:
        """Send the values that waited for an answer about their setting; `all`: also where it has not come yet."""
        if self.link is not None:
            for command in self._chat.engine.release(all=all):
                self.link.send(command)

    def require_free(self) -> None:
        """Raise UsageError with the reason if no reply can be requested now."""
        if self._chat.background.replaying:
            raise UsageError(self._app.recording_reason)
        if not self._chat.can_generate:
            restart = self._app.key_of("restart") or "/restart"
            raise UsageError(self._app.busy_reason if self._chat.writing else self._chat.engine.not_ready(restart))

    def stop(self) -> bool:
        """Stop loading, or the reply at its next round; False if there is nothing to stop."""
        if self.link is None:
            return False
        if self._chat.engine.phase == "loading":
            self.link.send(Cancel(None))
            self._app.say("stopping …")
        elif self._cancel_reply():
            self._app.say("stopping at the next round …")
        else:
            return False
        return True

    def _cancel_reply(self) -> bool:
        """Stop the reply that is being written, be it for another program; False if there is none."""
        running = self._chat.running or self._chat.newest_reply
        if self.link is None or running is None or not self._chat.writing:
            return False
        self.link.send(Cancel(running.id))
        return True

    def leave_chat(self) -> None:
        if self._chat.running is not None and self.link is not None and self.player is None:
            self.link.send(Cancel(self._chat.running.id))

    def detach(self) -> Link | None:
        """Leave the engine, which is the caller's now, so that a recording can take its place until `attach`."""
        engine, self.link = self.link, None
        self._chat.background.replaying = True
        return engine

    def attach(self, engine: Link | None) -> Link | None:
        """Talk to the engine again; returns the recording's link, which the caller closes."""
        played, self.link = self.link, engine
        self.player, self._chat.background.replaying = None, False
        return played

    async def start_beside(self, factory: LinkFactory | None) -> Link:
        """Another engine beside this one, which the caller closes; None: started as this one was.

        Raises:
            SpecchatError: it cannot be started.
        """
        start = factory or self._factory
        return await self._priority.start(lambda: start(self._pump.wake))

    def close(self) -> None:
        if self.link is not None:
            self.link.close()

    async def connect(self, factory: LinkFactory | None = None) -> None:
        """Talk to what this starts, the engine as a rule."""
        start = factory or self._factory
        old, self.link = self.link, None
        if old is not None:
            await asyncio.to_thread(old.close)
        self._chat.engine.phase, self._chat.engine.problem = "starting", ""
        try:
            self.link = await self._priority.start(lambda: start(self._pump.wake))
        except SpecchatError as error:
            self._chat.engine.phase, self._chat.engine.problem = "dead", str(error)
            self._app.redraw()
            return
        self.player = self.link if isinstance(self.link, Player) else None
        self._chat.background.replaying = self.player is not None
        self._app.link_changed()
        self.link.send(self._chat.engine.load())
        self._app.redraw()
