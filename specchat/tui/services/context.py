"""What the app is given when it is opened, and the services that it builds from that."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specchat.config import load_catalog, settings_of, shipped_settings
from specchat.config.settings_saving import Saved, save, set_in
from specchat.engine.protocol.describe import settings_message
from specchat.errors import SpecchatError, UsageError
from specchat.tui.services.chat_archive import ChatArchive
from specchat.tui.services.engine_server import FIRST_RACE_ID, EngineServer, ServedReplies, StartServer
from specchat.tui.services.engine_session import EngineSession, LinkFactory
from specchat.tui.services.event_pump import EventPump, GarbageCollection
from specchat.tui.services.pair_library import PairLibrary, PairSources
from specchat.tui.services.playback_speed import PlaybackSpeed
from specchat.tui.services.terminal_app import TerminalApp
from specchat.tui.services.training_runner import TrainingHere
from specchat.tui.state.chat import Chat
from specchat.tui.state.races import BenchQuestion
from specchat.tui.tree.picture import ASCII, UNICODE


class SettingsFiles:
    """The settings in the files of this machine. `here` is False where the engine runs elsewhere and reads its own."""

    def __init__(self, chat: Chat, *, here: bool) -> None:
        self.shipped: Mapping[str, Any] | None = None  # None: unknown
        self.saved: Mapping[str, Any] | None = None
        self._chat = chat
        self._here = here

    def read(self) -> None:
        """Read what the pair in use was shipped with and starts with, as far as this machine knows the pair."""
        self.shipped = self.saved = None
        ready = self._chat.engine.ready
        if ready is None or not self._here:
            return
        with suppress(SpecchatError):  # a pair of a recording, or a broken file: saving reports it
            pair = load_catalog().pair(ready.pair)
            self.shipped = settings_message(shipped_settings(pair))
            self.saved = settings_message(settings_of(pair))

    def expected(self) -> tuple[Mapping[str, Any], Mapping[str, Any]] | None:
        """What the pair that is to be loaded will start with, and what it was shipped with; None if not known here."""
        engine = self._chat.engine
        if self._here:
            with suppress(SpecchatError):  # loading reports it
                pair = load_catalog().pair(engine.loading_pair)
                return settings_message(settings_of(pair, engine.wanted)), settings_message(shipped_settings(pair))
        return None

    def keep(self, name: str, value: Any) -> None:
        """Let the next start have this value, for every pair; nothing is done where the engine runs elsewhere.

        Raises:
            ConfigError: the file cannot be read or written; it is as it was.
        """
        if self._here:
            set_in("settings", name, value)
            self.read()

    def save(self, *, into_pair: bool) -> list[Saved]:
        """Save the settings that differ from those of the next start; returns the keys written to each file.

        Raises:
            UsageError: there is nothing that could be saved here.
            ConfigError: a file cannot be read or written; it is as it was.
        """
        ready, hello = self._chat.engine.ready, self._chat.engine.hello
        if ready is None:
            raise UsageError("settings can be saved once a pair is ready")
        if not self._here:
            raise UsageError("the engine runs elsewhere and reads files of its own: use `specchat config set` there")
        methods = hello.methods if hello else []
        options = {f"{method.name}.{info.name}": info.default for method in methods for info in method.options}
        saved = save(ready.pair, self._chat.engine.settings, into_pair=into_pair, options=options)
        self.read()
        return saved


@dataclass(frozen=True)
class AppSetup(PairSources):
    """Where engines, pairs, chats and questions come from.

    Args:
        link_factory: starts an engine, or whatever answers like one.
        demo: a recording to offer where weights cannot be had.
        store: where chats are kept; None keeps none.
        toured: the file that says the tour was taken; None takes no tour.
        questions: what a benchmark asks, ordered so that the first ones cover every category.
        clock: seconds, of races; only differences count.
        server: lets other programs use the engine; None lets none.
        serve_on: the port on which they may from the start; None: not before they are let in.
        training: what it takes to train drafters on this machine; None where none can be.
        second_engine: starts an engine beside the chat's; None: `link_factory` does.
    """

    link_factory: LinkFactory
    demo: Path | None = None
    store: Path | None = None
    toured: Path | None = None
    questions: Callable[[], Sequence[BenchQuestion]] = tuple
    clock: Callable[[], float] = time.monotonic
    server: StartServer | None = None
    serve_on: int | None = None
    training: TrainingHere | None = None
    second_engine: LinkFactory | None = None

    @property
    def has_demo(self) -> bool:
        return self.demo is not None and self.demo.exists()


class AppServices:
    """The services of one app. Screens and commands get it as it is; `tick` asks the app to take what arrived."""

    def __init__(self, app: TerminalApp, setup: AppSetup, tick: Callable[[], object]) -> None:
        self.app, self.setup, self.tick, self.chat = app, setup, tick, app.chat
        self.chat.kept = setup.store is not None and setup.engine_here
        self.pump = EventPump(tick)
        self.garbage = GarbageCollection(lambda: self.pump.idle)
        self.settings_files = SettingsFiles(self.chat, here=setup.engine_here)
        self.archive = ChatArchive(app, setup.store)
        self.session = EngineSession(app, self.pump, setup.link_factory)
        self.speed = PlaybackSpeed(app, self.session, self.pump)
        self.pairs = PairLibrary(app, self.session, setup)
        self.served = ServedReplies(self.session, self.pump, app)
        self.server = EngineServer(app, self.served, setup.server, setup.serve_on)
        self.race_ids = itertools.count(FIRST_RACE_ID)
        self.marks = ASCII if app.options.ascii else UNICODE
