"""What the app does with its link: start an engine, load, ask, stop, play a recording, let go."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specchat.engine.client import Link
from specchat.engine.events import Cancel, Generate
from specchat.engine.replay import Player, Recording
from specchat.errors import SpecchatError
from specchat.tui import hearing
from specchat.tui.widgets.welcome import Welcome

if TYPE_CHECKING:
    from specchat.tui.app import SpecchatApp

LinkFactory = Callable[[Callable[[], None]], Link]
"""Starts an engine (or whatever answers like one); gets the function to call when events arrived."""


class Talk:
    """Commands out. Every reply, load and change the user causes goes through here."""

    def __init__(self, app: SpecchatApp, factory: LinkFactory, demo: Path | None) -> None:
        self.link: Link | None = None
        self.player: Player | None = None
        self._app = app
        self._chat = app.chat
        self._factory = factory
        self._demo = demo
        self._in_demo = False

    @property
    def has_demo(self) -> bool:
        return self._demo is not None and self._demo.exists()

    async def connect(self) -> None:
        """Start an engine and load what is wanted; a former one is let go."""
        gc.freeze()  # what is there now stays: collections need not look at it again
        await self._use(self._factory)

    async def reconnect(self) -> None:
        """Start the engine again if it is gone, load again if loading failed."""
        if self._chat.phase == "failed":
            await self.load({})
        elif self._chat.phase == "dead":
            await self.connect()
        else:
            self._app.say("the engine is running")

    async def load(self, changes: dict[str, Any]) -> None:
        """Load a pair, or the same one with other settings; a running reply is stopped first."""
        if self.link is None or self._chat.phase == "dead":
            self._chat.wanted.update(changes)
            await self.connect()
            return
        if self._chat.running is not None:
            self.link.send(Cancel(self._chat.running.id))
        self.link.send(self._chat.load(changes))
        self._app.say("")
        hearing.look(self._app)

    def change(self, name: str, value: Any) -> None:
        """Change one live setting."""
        if self.link is not None:
            self.link.send(self._chat.change(name, value))

    async def ask(self, text: str) -> bool:
        """Say something to the model, now or when it is free; False if one message waits already."""
        if self._chat.can_generate:
            await self._begin(self._chat.ask(text), 2)
        elif self._chat.queued is None:
            self._chat.queued = text
            self._app.say("")
        else:
            self._app.say("one message is waiting already; it is sent first", "warn")
            return False
        return True

    async def ask_again(self) -> None:
        """Answer the last question again; the reply it had is gone."""
        chat, app = self._chat, self._app
        if not chat.can_generate:
            app.say("a reply is being written; Esc stops it" if chat.running else "no pair is ready", "warn")
            return
        answered = bool(chat.turns) and chat.turns[-1].reply is not None
        if not chat.drop_reply():
            app.say("there is no question to answer again")
            return
        if answered:
            await app.transcript.views[-1].remove()
        await self._begin(chat.generate(), 1)

    def stop(self) -> bool:
        """Stop loading, or the reply at its next round; False if there is nothing to stop."""
        if self.link is None:
            return False
        if self._chat.phase == "loading":
            self.link.send(Cancel(None))
            self._app.say("stopping …")
        elif self._chat.running is not None:
            self.link.send(Cancel(self._chat.running.id))
            self._app.say("stopping at the next round …")
        else:
            return False
        return True

    def forget(self) -> None:
        """Begin a new chat; a running reply is stopped and no longer listened to."""
        if self._chat.running is not None and self.link is not None and self.player is None:
            self.link.send(Cancel(self._chat.running.id))
        self._chat.clear()

    async def watch_demo(self) -> None:
        """Play the shipped recording instead of talking to an engine."""
        if self._demo is None or not self._demo.exists():
            self._app.say("no demo is shipped with this installation", "warn")
            return
        recording = Recording.read(self._demo)
        await self._app.action_new_chat()
        self._in_demo = True
        await self._use(lambda wake: Player(recording, wake))

    async def leave_replay(self) -> None:
        """Back to the engine, if there was one; else the app has nothing left to show."""
        if not self._in_demo:
            self._app.exit()
            return
        self._in_demo = False
        await self._app.action_new_chat()
        await self.connect()

    async def steer(self, what: str) -> None:
        """Hold, step, change the speed of a replay, or play it again."""
        if (player := self.player) is None:
            return
        match what:
            case "hold" if player.paused:
                player.resume()
            case "hold":
                player.pause()
            case "step":
                player.step()
            case "slower" | "faster":
                player.faster(2.0 if what == "faster" else 0.5)
            case "rewind":
                await self._app.action_new_chat()
                player.rewind()
        self._app.replay_bar.repaint()

    async def _use(self, factory: LinkFactory) -> None:
        """Let the old link go and take a new one."""
        old, self.link = self.link, None
        if old is not None:
            await asyncio.to_thread(old.close)
        self._chat.phase, self._chat.problem = "starting", ""
        try:
            self.link = factory(self._app.pump.wake)
        except SpecchatError as error:
            self._chat.phase, self._chat.problem = "dead", str(error)
            hearing.look(self._app)
            return
        self.player = self.link if isinstance(self.link, Player) else None
        self._app.show_replay(self.player)
        self.link.send(self._chat.load())
        hearing.look(self._app)

    async def _begin(self, command: Generate, new_turns: int) -> None:
        """Send what starts a reply and show the turns it adds."""
        assert self.link is not None, "a reply is asked of a link"
        self.link.send(command)
        transcript = self._app.transcript
        if welcomes := transcript.query(Welcome):
            await welcomes.remove()
            transcript.from_top()
        await transcript.prune()
        for turn in self._chat.turns[-new_turns:]:
            await transcript.show(turn)
        transcript.follow()
        self._app.say("")
        hearing.look(self._app)
