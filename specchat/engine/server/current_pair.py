"""The pair that an engine uses now: loading it, changing its settings, and the draft models that come and go."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from specchat.config import load_catalog, settings_of, starting_pair, state_dir
from specchat.engine.protocol import events
from specchat.engine.server.event_conversion import released_message
from specchat.engine.server.load_times import LoadTimes
from specchat.engine.server.loaded_pair import LoadedPair
from specchat.engine.server.memory import free_memory
from specchat.engine.server.open_pair import OpenPair
from specchat.engine.server.pair_loading import Loader
from specchat.engine.server.profiles import ProfileStore
from specchat.errors import CombinationError, EngineError, NotEnoughMemory, SpecchatError
from specchat.settings import Settings

KEPT_UNUSED_S = 30.0
"""How long draft models stay after their last use: a user who tries drafters comes back to one, and reading it again
takes seconds."""


class CurrentPair:
    """The pair in use, if there is one.

    Args:
        emit: tells the client.
        load_cancelled: whether the loading that was asked for is to stop.
    """

    def __init__(self, emit: Callable[[events.Event], None], load_cancelled: Callable[[], bool]) -> None:
        self._emit = emit
        self._load_cancelled = load_cancelled
        self._store = ProfileStore(state_dir() / "profiles.json")
        self._open: OpenPair | None = None
        self._used_s = time.monotonic()

    @property
    def there(self) -> bool:
        """Whether a pair is loaded."""
        return self._open is not None

    @property
    def open(self) -> OpenPair:
        """The pair.

        Raises:
            EngineError: none is loaded.
        """
        if self._open is None:
            raise EngineError("no pair is loaded")
        return self._open

    def close(self) -> None:
        """Save what drafters have learnt and let the pair go."""
        if self._open is not None:
            self._open.close()
            self._open = None

    # ------------------------------------------------------------------------------------------- loading

    def load(self, changes: dict[str, Any]) -> OpenPair:
        """Use the pair that these settings name; where that fails, the one before stays."""
        loader = self._loader(self._load_cancelled)
        settings = settings_of(loader.catalog.pair(starting_pair(changes)), changes)
        if self._open is not None and self._open.serves(settings):
            loaded = replace(self._open.loaded.using(settings.threads), trained=loader.trained_drafters(settings))
            loaded = loader.add_drafts(loaded, settings, fetches=True)
        else:
            loaded = self._load(loader, settings)
        return self._take(loaded, settings)

    def _loader(self, cancelled: Callable[[], bool]) -> Loader:
        return Loader(load_catalog(), self._emit, cancelled, LoadTimes(state_dir() / "load_times.json"))

    def _take(self, loaded: LoadedPair, settings: Settings) -> OpenPair:
        """Use these models from now on; where the settings do not fit them, nothing has changed."""
        before = self._open
        if before is not None:
            before.idle.kept.save()
        now = OpenPair.open(loaded, settings, self._store, lambda text: self._emit(events.Notice(text)), before)
        if before is not None and now.totals is not before.totals:
            before.conversation.drafters.close()
        self._open = now
        return now

    def _load(self, loader: Loader, settings: Settings) -> LoadedPair:
        """Keep the old pair until the new one runs; without memory for both, let it go and fetch it back if need be."""
        try:
            return loader.load(settings)
        except NotEnoughMemory:
            if self._open is None:
                raise
        before = self._open.conversation.settings
        self.close()
        free_memory()
        try:
            return loader.load(settings)
        except SpecchatError:
            self._take(replace(loader, cancelled=lambda: False).load(before), before)
            raise

    # ---------------------------------------------------------------------------------------- live settings

    def change(self, changes: dict[str, Any]) -> bool:
        """Use these live settings from the next round on; whether draft models were loaded for it."""
        now = self.open
        self.used(now.conversation.settings)
        before, settings = now.loaded.drafts, now.conversation.settings.changed_live(changes)
        try:
            now.conversation.check(settings, now.loaded.offered)
        except CombinationError:
            now.supply_drafters(self._loader(lambda: False), settings)
        self.add_drafts(settings)
        now.conversation.change(settings)
        now.idle.kept.learn(settings.learn)
        return now.loaded.drafts != before

    def add_drafts(self, settings: Settings) -> None:
        """Load the draft models that these settings use and that are not loaded yet; none is fetched."""
        for note in self.open.add_drafts(lambda: self._loader(lambda: False), settings):
            self._emit(events.Notice(note))

    def used(self, settings: Settings) -> None:
        """These settings were in use until now: draft models that they use stay for a while."""
        if self.open.loaded.drafts_in_use(settings):
            self._used_s = time.monotonic()

    def release_in_s(self) -> float | None:
        """In how many seconds draft models may go that the settings do not use; None where there are none."""
        if self._open is None or not self._open.unused_drafts:
            return None
        return max(0.0, self._used_s + KEPT_UNUSED_S - time.monotonic())

    def release_drafts(self) -> None:
        """Let go of draft models that the settings do not use. Never while a reply is being written."""
        self._used_s = time.monotonic()  # where this fails, the next try waits
        names = self.open.release_drafts()
        self._emit(released_message(names, self.open.loaded))
