"""Other programs use the app's engine over HTTP: their replies come one at a time, by turns with those of the chat."""

from __future__ import annotations

import itertools
import queue
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from msgspec.structs import replace

from specchat.engine.client.client import GuestLink, Link, take_all
from specchat.engine.protocol.commands import Cancel, Command, Generate, Load, Quit
from specchat.engine.protocol.events import Changed, Died, Event, Failed, Finished, Ready
from specchat.errors import EngineError, UsageError, short
from specchat.tui.services.engine_session import EngineSession
from specchat.tui.services.event_pump import EventPump
from specchat.tui.services.terminal_app import TerminalApp
from specchat.tui.state.reply_figures import Figures
from specchat.tui.state.turn import Reply
from specchat.tui.state.visible_reply import ServedReply

_FIRST_ID, FIRST_RACE_ID = 1_500_000_000, 2_000_000_000
"""Ids of these replies lie between; those of the chat and of counts are lower, and those of races higher."""

DEFAULT_PORT = 8000


class RunningServer(Protocol):
    """An HTTP server that answers with replies of the app's engine."""

    @property
    def address(self) -> str: ...
    @property
    def key(self) -> str: ...
    def stop(self) -> None: ...


Tell = Callable[[str], object]
StartServer = Callable[[int, Callable[[Callable[[], None]], Link], Tell, Tell], RunningServer]
"""Starts such a server on a port, in a thread of its own; raises SpecchatError if it cannot be started.

The second argument links it to the engine; the third is called before a reply is asked for, with the name of the
program that asks; the last from that thread if the server ends by itself, with the reason.
"""


class ServedReplies:
    """The owner of guest links: what a guest sends becomes commands to the engine once the chat leaves it free.

    The pair and the settings are the user's. A guest loads nothing, and what it changes holds for its next reply alone.
    """

    def __init__(self, session: EngineSession, pump: EventPump, app: TerminalApp) -> None:
        self._chat, self._send, self._wake = app.chat, session.send, pump.wake
        self._ids = itertools.count(_FIRST_ID)
        self._arrived: queue.SimpleQueue[GuestLink] = queue.SimpleQueue()
        self._guest: GuestLink | None = None
        self._loading = False  # the guest waits for a pair
        self._changes: dict[str, Any] = {}  # settings that the guest wants for its next reply
        self._waiting: Generate | None = None
        self._running: Generate | None = None  # as the guest sent it
        self._stopped_by_guest = False
        self._new_on_screen = False
        self.client = ""
        """Who asks for the reply that comes next; set before it is asked for."""

    def connect(self, wake: Callable[[], None]) -> GuestLink:
        """A link for a guest, in place of the one before; may be called from any thread.

        Raises:
            EngineError: there is no engine.
        """
        if self._chat.engine.phase in ("dead", "failed"):
            raise EngineError("the app has no engine at present")
        self._arrived.put(guest := GuestLink(wake, self._wake))
        return guest

    def dispatch(self, events: Sequence[Event]) -> tuple[bool, list[Event]]:
        """Give the guest its answers and take its commands.

        Returns:
            Whether there is something new to show of it, and the events that are not answers to it.
        """
        own = [event for event in events if not _is_served(event)]
        for event in events:
            self._pass_on(event)
        for guest in take_all(self._arrived):
            self._leave()
            self._guest = guest
        for command in self._guest.commands() if self._guest is not None else []:
            self._take(command)
        new, self._new_on_screen = len(own) < len(events) or self._new_on_screen, False
        return new, own

    def ask_next(self) -> None:
        """Ask the engine for the reply that waits, if nothing else needs the engine; else let the screen say so."""
        waiting, chat = self._waiting, self._chat
        if waiting is not None and chat.can_generate and chat.queued is None and not chat.background.racing:
            settings = chat.engine.settings
            apart = {name: value for name, value in self._changes.items() if settings.get(name) != value}
            chat.served = ServedReply(Reply(next(self._ids), Figures()), self.client, apart=bool(apart))
            self._running, self._waiting, self._stopped_by_guest = waiting, None, False
            self._send(replace(waiting, id=chat.served.reply.id, apart=apart or None))
        waits = self.client if self._waiting is not None else ""
        if waits != chat.background.waiting_client:
            chat.background.waiting_client, self._new_on_screen = waits, True
            self._wake()

    def _pass_on(self, event: Event) -> None:
        served = self._chat.served
        if isinstance(event, Changed) and served is not None and served.running:
            served.apply(event)
        if _is_served(event) and served is not None:
            served.apply(event)
            if isinstance(event, Finished) and event.stop == "cancelled" and not self._stopped_by_guest:
                event = Failed("EngineError", "the reply was stopped in the app", id=event.id, during="generate")
            if self._running is not None:
                self._answer(replace(event, id=self._running.id))
            if isinstance(event, Finished | Failed):
                self._running = None
        elif isinstance(event, Ready) or (isinstance(event, Failed) and event.during == "load" and self._loading):
            self._answer(event)
            self._loading = False
        elif isinstance(event, Changed) and (ready := self._chat.engine.ready) is not None:
            self._answer(replace(ready, settings=event.settings, loss=event.loss))
        elif isinstance(event, Died):
            if served is not None and served.running:
                served.apply(Failed("EngineError", "the engine died", id=served.reply.id))
            self._running = self._waiting = None
            self._answer(event)

    def _take(self, command: Command) -> None:
        match command:
            case Load() if self._chat.engine.phase == "ready" and self._chat.engine.ready is not None:
                ready = self._chat.engine.ready
                self._answer(replace(ready, settings=self._chat.engine.settings, loss=self._chat.engine.loss))
            case Load():
                self._loading = True
            case Generate():
                self._changes, self._waiting = command.own or {}, replace(command, own=None)
            case Cancel():
                self._cancel()
            case Quit():
                self._leave()

    def _leave(self) -> None:
        self._cancel()
        self._guest = self._running = None
        self._loading = False

    def _cancel(self) -> None:
        """The guest wants no reply any more."""
        if self._waiting is not None:
            self._answer(Failed("Cancelled", "cancelled", id=self._waiting.id, during="generate"))
            self._waiting = None
        elif self._running is not None and self._chat.served is not None:
            self._stopped_by_guest = True
            self._send(Cancel(self._chat.served.reply.id))

    def _answer(self, event: Event) -> None:
        if self._guest is not None:
            self._guest.answer(event)


def _is_served(event: Event) -> bool:
    id = getattr(event, "id", None)
    return id is not None and _FIRST_ID <= id < FIRST_RACE_ID


class EngineServer:
    """At most one server. It ends with the app.

    Args:
        wanted: the port to serve on as soon as a pair is ready; None: not before the user says so.
    """

    def __init__(
        self, app: TerminalApp, served: ServedReplies, start: StartServer | None, wanted: int | None = None
    ) -> None:
        self._app, self._chat, self._served, self._start = app, app.chat, served, start
        self._wanted = wanted
        self._running: RunningServer | None = None

    async def pair_ready(self) -> None:
        """Start the server if it was wanted from the start, and note where.

        Raises:
            UsageError: no server can run here.
            SpecchatError: no port is free.
        """
        wanted, self._wanted = self._wanted, None
        if wanted is not None:
            await self._app.note(self.serve(str(wanted)))

    def serve(self, argument: str) -> str:
        """Start the server on this port, or stop it where the argument is `off`; returns what to tell the user.

        Raises:
            UsageError: the argument is neither, there is no pair, or no server can run here.
        """
        self._wanted = None
        if argument == "off":
            was_running = self._running is not None
            self.stop()
            self._app.redraw()
            return "other programs can no longer use the engine" if was_running else "no other program uses the engine"
        if self._running is None:
            self._running = self._started(parse_port(argument, "/serve", "a port from 1 to 65535, or off"))
            self._chat.background.serving = f"{self._running.address}/v1"
            self._app.redraw()
        address = self._chat.background.serving
        return f"other programs may ask at {address} with the key {self._running.key}; /serve off ends that"

    def stop(self) -> None:
        server, self._running = self._running, None
        self._chat.background.serving = ""
        if server is not None:
            server.stop()

    def _started(self, port: int) -> RunningServer:
        if self._start is None:
            raise UsageError("this app has no engine that others could use")
        if self._chat.engine.phase != "ready":
            raise UsageError("no pair is ready; its engine can be shared once it is loaded")
        asked = partial(setattr, self._served, "client")
        ended = partial(self._app.call_later, self._ended)  # it is called from the server's thread
        return self._start(port, self._served.connect, asked, ended)

    def _ended(self, why: str) -> None:
        if self._running is not None:
            self.stop()
            self._app.redraw()
            self._app.say(f"other programs can no longer use the engine: {why}", "warn")


def parse_port(said: str, where: str, known: str) -> int:
    """The port that was said; the usual one where nothing was.

    Args:
        where: the command or option that it was said to, for the error.
        known: what may be said to it.

    Raises:
        UsageError: it is not a port number.
    """
    if not said:
        return DEFAULT_PORT
    digits = said.isascii() and said.isdecimal() and len(said) <= 5
    if not digits or not 1 <= int(said) <= 65535:
        raise UsageError(f"{where} {short(said)}: give {known}")
    return int(said)
