"""Starts and stops the HTTP server through which other programs use the app's engine."""

from __future__ import annotations

from specchat.errors import UsageError, short
from specchat.tui.control.served_replies import ServedReplies
from specchat.tui.ports import AppPorts, RunningServer, StartServer
from specchat.tui.state.chat import Chat

DEFAULT_PORT = 8000


class EngineServer:
    """At most one server. It ends with the app.

    Args:
        wanted: the port to serve on as soon as a pair is ready; None: not before the user says so.
    """

    def __init__(
        self,
        chat: Chat,
        served: ServedReplies,
        ports: AppPorts,
        start: StartServer | None,
        wanted: int | None = None,
    ) -> None:
        self._chat, self._served, self._ports, self._start = chat, served, ports, start
        self._wanted = wanted
        self._running: RunningServer | None = None

    def pair_ready(self) -> str:
        """Start the server if it was wanted from the start; returns what to tell the user, if anything.

        Raises:
            UsageError: no server can run here.
            SpecchatError: no port is free.
        """
        wanted, self._wanted = self._wanted, None
        return "" if wanted is None else self.serve(str(wanted))

    def serve(self, argument: str) -> str:
        """Start the server on this port, or stop it where the argument is `off`; returns what to tell the user.

        Raises:
            UsageError: the argument is neither, there is no pair, or no server can run here.
        """
        self._wanted = None
        if argument == "off":
            was_running = self._running is not None
            self.stop()
            self._ports.redraw()
            return "other programs can no longer use the engine" if was_running else "no other program uses the engine"
        if self._running is None:
            self._running = self._started(parse_port(argument, "/serve", "a port from 1 to 65535, or off"))
            self._chat.background.serving = f"{self._running.address}/v1"
            self._ports.redraw()
        address = self._chat.background.serving
        return f"other programs may ask at {address} with the key {self._running.key}; /serve off ends that"

    def stop(self) -> None:
        """Stop the server, if one runs; also after the app has ended."""
        server, self._running = self._running, None
        self._chat.background.serving = ""
        if server is not None:
            server.stop()

    def _started(self, port: int) -> RunningServer:
        if self._start is None:
            raise UsageError("this app has no engine that others could use")
        if self._chat.engine.phase != "ready":
            raise UsageError("no pair is ready; its engine can be shared once it is loaded")
        return self._start(port, self._served.connect, self._on_asked, self._on_end)

    def _on_asked(self, client: str) -> None:
        self._served.client = client

    def _on_end(self, why: str) -> None:
        """The server has ended by itself; called from its thread."""
        self._ports.call_later(self._ended, why)

    def _ended(self, why: str) -> None:
        if self._running is not None:
            self.stop()
            self._ports.redraw()
            self._ports.notify(f"other programs can no longer use the engine: {why}", "warn")


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
