"""Serving: from the command line, where `--watch` draws the trees of the replies, and from a running app."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from specchat.cli.flags import Output
from specchat.cli.listening import KEY_VARIABLE, address_of, check_packages, listening, own_key
from specchat.cli.run_output import Outputs
from specchat.engine.client.client import Link
from specchat.engine.client.speedup import stats_line
from specchat.engine.client.start_engine import remove_engine_logs, start_engine
from specchat.engine.protocol.events import Died, Event, Failed, Finished, Loading, Notice, Ready, RoundDone, Started
from specchat.engine.protocol.stage_text import streaming_text
from specchat.engine.protocol.text import one_line, visible
from specchat.errors import SpecchatError
from specchat.tui.tree import layout

HOST = "127.0.0.1"
QUEUE = 64
"""Requests that may wait while another is answered."""

_GOODBYE_S = 3.0
"""How long replies that are being sent may take when the app stops its server."""

_BEAT_S = 0.08
"""The least time between two pictures; each shows a real round."""

_TREE_LINES, _TEXT_LINES = 12, 4

_STYLES = {
    "root": "bold", "accepted": "blue", "bonus": "yellow", "rejected": "red strike", "crossed": "red",
    "unreached": "dim", "pruned": "dim", "cut": "dim", "river": "blue", "line": "dim", "dim": "dim", "bar": "blue",
    "agreed": "cyan",
}  # fmt: skip
"""How the roles of a drawn line look here; glyphs say the same."""


class TreeWatch:
    """Draws what it hears: one picture while a reply is written, one line when it is over.

    Of several replies the one is drawn that began first; the others are told of when they begin and end.
    """

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False)
        self._live = Live(console=self._console, auto_refresh=False, transient=True, redirect_stdout=False)
        self._asked: dict[int, str] = {}  # of the replies that are being written
        self._text = ""
        self._drawn_s = 0.0

    def hear(self, event: Event) -> None:
        match event:
            case Started():
                asked = one_line(event.messages[-1].content if event.messages else event.text or "")
                self._asked[event.id] = asked
                self._console.print(self._line(f"› {asked}", "bold"))
                self._live.start()
            case RoundDone() if event.id == next(iter(self._asked), None):
                self._text = (self._text + "".join(piece.text for piece in event.pieces))[-4000:]
                if time.monotonic() - self._drawn_s >= _BEAT_S:
                    self._drawn_s = time.monotonic()
                    self._live.update(self._picture(event), refresh=True)
            case Finished():
                self._end(event.id, f"{stats_line(event.stats)} · {event.stop}")
            case Failed():
                self._end(event.id, f"refused: {one_line(event.message)}")
            case Died():
                self._asked.clear()
                self._end(None, "the engine died; it is being started again")

    def close(self) -> None:
        self._live.stop()

    def _end(self, id: int | None, words: str) -> None:
        """A reply is over; the next of those that are being written is drawn from now on."""
        if id is None or id == next(iter(self._asked), id):
            self._text = ""
        asked = "" if id is None else self._asked.pop(id, "")
        if not self._asked:
            self._live.stop()
        told = f"  {asked[:40]} · {words}" if self._asked and asked else f"  {words}"
        self._console.print(self._line(told, "dim"))

    def _picture(self, round: RoundDone) -> Text:
        width, height = self._console.width, self._console.height
        lines = max(1, min(_TREE_LINES, height - _TEXT_LINES - 2))
        said = visible(self._text).split("\n")
        rows = [line[at : at + width - 1] for line in said for at in range(0, max(1, len(line)), width - 1)]
        picture = Text("\n".join(rows[-_TEXT_LINES:]) + "\n")
        for line in layout(round, width - 1, lines):
            for text, role in line:
                picture.append(text, _STYLES.get(role, ""))
            picture.append("\n")
        return picture

    def _line(self, words: str, style: str) -> Text:
        line = Text(words, style)
        line.truncate(self._console.width - 1, overflow="ellipsis")
        return line


def serve_on(
    settings: dict[str, Any],
    door: socket.socket,
    guarded: bool,
    key: str | None,
    places: tuple[int, int],
    watch: bool,
    engine: str,
) -> None:
    """Serve on this socket until interrupted; `places` are requests that may wait, and those answered at a time."""
    from specchat.serve.access import Access, fresh_key
    from specchat.serve.loaded_engine import LoadedEngine
    from specchat.serve.server import serve_requests

    progress = Outputs(Output.text, None)
    trees = TreeWatch() if watch else None
    address, port = door.getsockname()[:2]
    access = Access(address, port, guarded, key or fresh_key())

    def tell(pair: Ready) -> None:
        shown = access.key if key is None else f"as {KEY_VARIABLE} says"
        progress.clear_progress()
        if pair.streaming:
            progress.notice(streaming_text(pair))
        print(f"specchat serves {pair.pair} at {address_of(door)}/v1   (Ctrl+C ends it)\nkey: {shown}", flush=True)

    def inform(event: Loading | Notice) -> None:
        if isinstance(event, Loading):
            progress.loading(event)
        else:
            progress.notice(event.text)

    loaded = LoadedEngine(lambda wake: start_engine(engine, settings, wake), settings, inform)
    try:
        queue, parallel = places
        hear = trees.hear if trees else None
        asyncio.run(serve_requests(loaded, door, access, queue, tell, hear, parallel=parallel))
    finally:
        if trees is not None:
            trees.close()
        remove_engine_logs(own=True)


class AppServer:
    """A server on this port of this machine, or on the next one that is free, as `StartServer` says."""

    def __init__(
        self,
        port: int,
        connect: Callable[[Callable[[], None]], Link],
        asked: Callable[[str], None],
        ended: Callable[[str], None],
    ) -> None:
        check_packages()
        from specchat.serve.access import Access, fresh_key

        door, chosen = listening(HOST, port, silent=True), own_key()
        self.address = address_of(door)
        self._access = Access(HOST, door.getsockname()[1], True, chosen or fresh_key())
        self.key = f"that {KEY_VARIABLE} says" if chosen else self._access.key
        self._door, self._connect, self._asked, self._ended = door, connect, asked, ended
        self._loop = asyncio.new_event_loop()
        self._stopped = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="server", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Answer nothing more; replies that are being sent get a moment."""
        with suppress(RuntimeError):  # it has ended already
            self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join(_GOODBYE_S)

    def _run(self) -> None:
        from specchat.serve.loaded_engine import LoadedEngine
        from specchat.serve.server import serve_requests

        engine = LoadedEngine(self._connect, {})
        why = ""
        try:
            self._loop.run_until_complete(
                serve_requests(
                    engine,
                    self._door,
                    self._access,
                    QUEUE,
                    ready=lambda pair: None,
                    begins=lambda asked: self._asked(asked.client),
                    stopped=self._stopped,
                )
            )
        except SpecchatError as error:
            why = str(error)
        finally:
            self._door.close()
            self._loop.close()
        if not self._stopped.is_set():
            self._ended(why or "the server has ended")
