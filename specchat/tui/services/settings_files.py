"""Reads the shipped and saved settings of a pair from files, and saves the settings in force."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from specchat.config import load_catalog, settings_of, shipped_settings
from specchat.config.settings_saving import Saved, save, set_general
from specchat.engine.protocol.describe import settings_message
from specchat.errors import SpecchatError, UsageError
from specchat.tui.state.chat import Chat


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
            set_general(name, value)
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
