"""The session with the engine: start it, load, ask, stop, play a recording, close it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from specchat.engine.client.client import Engine, Link
from specchat.engine.client.replay import Player
from specchat.engine.protocol.commands import Cancel, Command, Generate
from specchat.errors import SpecchatError, UsageError
from specchat.tui.control.branches import Branches
from specchat.tui.control.event_pump import EventPump
from specchat.tui.control.tour import Tour
from specchat.tui.ports import AppPorts
from specchat.tui.services.chat_archive import ChatArchive
from specchat.tui.services.garbage_collection import GarbageCollection
from specchat.tui.state.chat import Chat
from specchat.tui.state.engine_state import change_of
from specchat.tui.state.turn import Turn
from specchat.tui.system.processes import EnginePriority, wants_every_core
from specchat.tui.text import numbers
from specchat.tui.view_ports import ViewPorts

LinkFactory = Callable[[Callable[[], None]], Link]
"""Starts an engine (or whatever answers like one); gets the function to call when events arrived."""


class EngineSession:
    """Sends all commands to the engine: every load, change and reply that the user requests."""

    def __init__(
        self,
        chat: Chat,
        views: ViewPorts,
        pump: EventPump,
        archive: ChatArchive,
        branches: Branches,
        tour: Tour,
        garbage: GarbageCollection,
        ports: AppPorts,
        *,
        factory: LinkFactory,
    ) -> None:
        self.before_reply: Callable[[int], None] = lambda id: None  # called before the engine is asked for this reply
        self.link: Link | None = None
        self.player: Player | None = None
        self._chat, self._views, self._pump, self._archive, self._ports = chat, views, pump, archive, ports
        self._branches, self._tour, self._garbage = branches, tour, garbage
        self._factory = factory
        self._priority = EnginePriority()

    @property
    def engine_pid(self) -> int:
        """The engine's process, if it runs on this machine; else 0."""
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
            self.link.send(command)
        return self.link is not None

    async def connect(self) -> None:
        """Start an engine and load the wanted pair; a former engine is closed."""
        await self.connect_to(self._factory)

    async def reconnect(self) -> None:
        """Start the engine again if it is gone, load again if loading failed."""
        if self._chat.engine.phase == "failed":
            await self.load({})
        elif self._chat.engine.phase == "dead":
            await self.connect()
        else:
            self._ports.notify("the engine is running")

    async def load(self, changes: dict[str, Any]) -> None:
        """Load a pair, or the same one with other settings; a running reply is stopped first."""
        if self.link is None or self._chat.engine.phase == "dead":
            self._chat.engine.wanted.update(changes)
            await self.connect()
            return
        self._cancel_reply()
        self.link.send(self._chat.engine.load(changes))
        self._ports.notify("")
        self._ports.redraw()

    def change(self, name: str, value: Any) -> None:
        """Change one live setting; refused while a pair is being loaded, kept for the next start without an engine."""
        engine = self._chat.engine
        if engine.phase == "loading":
            self._ports.notify("settings can be changed once the pair is loaded", "warn")
        elif engine.phase == "ready":
            self.change_all(change_of(name, value))
        else:
            engine.keep(change_of(name, value))
            how = self._ports.key_hint("restart", "loads it", " · ") if engine.phase != "starting" else ""
            self._ports.notify(f"{name} = {numbers.setting(value)} applies once a pair is loaded{how}")
            self._ports.redraw()

    def change_all(self, settings: dict[str, Any]) -> None:
        """Change several live settings at once: all of them, or none where they do not go together."""
        if self.link is not None:
            self.link.send(self._chat.engine.change(settings))

    async def ask(self, text: str) -> bool:
        """Send a message now, or queue it while a reply is written; False or UsageError if neither is possible."""
        if self._chat.editing is not None:
            await self.ask_in_place_of(self._chat.editing, text)
        elif self._chat.can_generate:
            await self._begin(self._chat.ask(text), 2)
        elif self._chat.queued is None:
            self._chat.queued = text
            self._ports.notify("")
            self._ports.redraw()
        else:
            self._ports.notify("one message is waiting already; it is sent first", "warn")
            return False
        return True

    async def ask_apart(self, text: str, settings: dict[str, Any]) -> None:
        """Send a message now; the settings hold for its reply alone. Raises UsageError if nothing can be asked now."""
        self.require_free()
        await self._begin(self._chat.ask(text, settings), 2)

    async def ask_again(self, turn: Turn | None = None) -> None:
        """Answer a question once more, the last one or that of this turn; its other answers stay beside the new one.

        Raises UsageError if nothing can be asked now.
        """
        self.require_free()
        if not self._chat.cut_after_question(turn):
            self._ports.notify("there is no question to answer again")
            return
        await self._views.transcript.change(self._chat.turns)
        await self._begin(self._chat.generate(), 1)

    async def go_on(self) -> None:
        """Go on with the last reply where it was cut; raises UsageError if it is complete or nothing can be asked."""
        self.require_free()
        command = self._chat.go_on()
        await self._views.transcript.change(self._chat.turns[:-1])  # it is shown anew as it grows
        await self._begin(command, 1)

    async def ask_in_place_of(self, turn: Turn, text: str) -> None:
        """Begin a branch with this message beside another one; raises UsageError if nothing can be sent now.

        A reply in place of another is not answered: it takes its place as the model's own words.
        """
        self.require_free()
        self._chat.editing = None
        if turn.reply is not None:
            self._chat.replace_reply(turn, text)
            await self._branches.show("the reply is edited; /continue goes on from here")
            return
        self._chat.branches.cut(turn)
        await self._views.transcript.change(self._chat.turns)
        await self._begin(self._chat.ask(text), 2)

    def require_free(self) -> None:
        """Raise UsageError with the reason if no reply can be requested now."""
        if self._chat.background.replaying:
            raise UsageError(self._ports.recording_reason)
        if not self._chat.can_generate:
            restart = self._ports.key_of("restart") or "/restart"
            raise UsageError(self._ports.busy_reason if self._chat.writing else self._chat.engine.not_ready(restart))

    def stop(self) -> bool:
        """Stop loading, or the reply at its next round; False if there is nothing to stop."""
        if self.link is None:
            return False
        if self._chat.engine.phase == "loading":
            self.link.send(Cancel(None))
            self._ports.notify("stopping …")
        elif self._cancel_reply():
            self._ports.notify("stopping at the next round …")
        else:
            return False
        return True

    def _cancel_reply(self) -> bool:
        """Stop the reply that is being written, be it for another program; False if there is none."""
        running = self._chat.running or self._chat.served
        if self.link is None or running is None or not self._chat.writing:
            return False
        self.link.send(Cancel(running.id))
        return True

    def reset_chat(self) -> None:
        """Begin a new chat; a running reply is cancelled."""
        if self._chat.running is not None and self.link is not None and self.player is None:
            self.link.send(Cancel(self._chat.running.id))
        self._chat.clear()
        self._archive.save()

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

    def close(self) -> None:
        """End the engine."""
        if self.link is not None:
            self.link.close()

    async def connect_to(self, factory: LinkFactory) -> None:
        """Close the old link and open a new one."""
        old, self.link = self.link, None
        if old is not None:
            await asyncio.to_thread(old.close)
        self._chat.engine.phase, self._chat.engine.problem = "starting", ""
        try:
            self.link = await self._priority.start(lambda: factory(self._pump.wake))
        except SpecchatError as error:
            self._chat.engine.phase, self._chat.engine.problem = "dead", str(error)
            self._ports.redraw()
            return
        self.player = self.link if isinstance(self.link, Player) else None
        self._chat.background.replaying = self.player is not None
        self.show_replay()
        self.link.send(self._chat.engine.load())
        self._ports.redraw()

    async def _begin(self, command: Generate, new_turns: int) -> None:
        """Send the command that starts a reply, and show the turns it adds."""
        assert self.link is not None, "a reply is asked of a link"
        self.before_reply(command.id)
        self._archive.save()
        await self._archive.wait_until_written()
        self.link.send(command)
        transcript = self._views.transcript
        await self._tour.leave()
        await self._views.start_pages.remove_welcome()
        await transcript.prune()
        for turn in self._chat.turns[-new_turns:]:
            await transcript.show(turn)
        transcript.follow()
        self._ports.notify("")
        self._ports.redraw()
        self._ports.after_refresh(self._garbage.collect_if_many)  # the engine reads the prompt

    def show_replay(self) -> None:
        """Show a recording's controls in place of the prompt, or the prompt, which must take no key while hidden."""
        player = self.player
        self._ports.chat_screen().set_class(player is not None, "-replay")
        self._views.replay_bar.show(player)
        self._views.prompt.can_focus = player is None
        (self._views.transcript if player else self._views.prompt).focus()
