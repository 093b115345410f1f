"""The state of the engine: the pair in use or being loaded, the settings in force, the wanted settings."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from msgspec.structs import replace

from specchat.engine.protocol.commands import Change, Load
from specchat.engine.protocol.events import Changed, Died, Event, Failed, Hello, Loading, Losslessness, Ready, Released
from specchat.engine.protocol.text import visible
from specchat.settings import SPECULATION
from specchat.tui.state.setting_effect import SettingEffect

Phase = Literal["starting", "loading", "ready", "failed", "dead"]


@dataclass
class EngineState:
    """The engine's side of the session; it outlives every chat."""

    wanted: dict[str, Any] = field(default_factory=dict)  # what the user asked for explicitly
    phase: Phase = "starting"
    hello: Hello | None = None
    ready: Ready | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    loss: Losslessness | None = None
    loading: Loading | None = None
    loading_pair: str = ""
    refused: str = ""  # a pair that could not be loaded while another stays in use
    problem: str = ""  # one line: why there is no engine or no pair
    effect: SettingEffect = field(default_factory=SettingEffect)  # of the last change of settings
    _wanted_before: dict[str, Any] = field(default_factory=dict)  # should loading fail
    changes: deque[dict[str, Any]] = field(default_factory=deque)  # sent without an answer yet
    held: dict[str, Any] = field(default_factory=dict)  # settings with such a change: the values chosen since

    @property
    def reading(self) -> bool:
        """Whether models are being fetched or read, be it for a change while a pair is in use."""
        return self.loading is not None and self.phase in ("loading", "ready")

    @property
    def pair(self) -> str:
        return self.ready.pair if self.ready else ""

    def not_ready(self, restart: str) -> str:
        """Why no pair is ready, and what helps: this key, or to wait."""
        reasons = {
            "dead": f"there is no engine; {restart} starts it again",
            "failed": f"no pair is loaded; {restart} loads it again",
        }
        return reasons.get(self.phase, "no pair is ready; try again once it is loaded")

    def load(self, changes: Mapping[str, Any] | None = None) -> Load:
        """The command that loads the wanted pair and settings, with these changes."""
        changes, self._wanted_before = changes or {}, dict(self.wanted)
        before = self.pair or self.wanted.get("pair")
        if before and changes.get("pair", before) != before:
            for name in SPECULATION:  # speculation settings belong to the pair, sampling settings to the user
                self.wanted.pop(name, None)
        self.wanted.update(changes)
        self.phase, self.problem, self.loading, self.refused = "loading", "", None, ""
        self.loading_pair = str(self.wanted.get("pair", ""))
        return Load(dict(self.wanted))

    def change(self, settings: dict[str, Any]) -> Change:
        self.changes.append(settings)
        return Change(settings)

    def choose(self, name: str, value: Any) -> Change | None:
        """The command that changes a setting; None while it is unanswered, for which the last value chosen waits."""
        if self._unanswered(name):
            self.held[name] = value
            return None
        return self.change(change_of(name, value))

    def release(self, *, all: bool = False) -> list[Change]:
        """The commands for values that waited and need wait no longer."""
        due = [name for name in self.held if all or not self._unanswered(name)]
        return [self.change(change_of(name, self.held.pop(name))) for name in due]

    @property
    def chosen(self) -> dict[str, Any]:
        """The settings in force once the engine has taken every change."""
        chosen = self.settings
        for change in (*self.changes, *(change_of(name, value) for name, value in self.held.items())):
            chosen = _with_change(chosen, change)
        return dict(chosen)

    @property
    def unanswered(self) -> bool:
        """Whether a change was asked for that the engine may still refuse."""
        return bool(self.changes or self.held)

    def _unanswered(self, name: str) -> bool:
        return any(name in (change.get("method_options", {}) if "." in name else change) for change in self.changes)

    def keep(self, change: Mapping[str, Any]) -> None:
        self.wanted = _with_change(self.wanted, change)

    def use(self, settings: Mapping[str, Any], loss: Losslessness | None) -> None:
        self.settings, self.loss, self.loading = dict(settings), loss, None

    def apply(self, event: Event) -> None:
        match event:
            case Hello():
                self.hello = event
            case Loading():
                self.loading = event
                if self.phase == "starting":
                    self.phase = "loading"
            case Ready():
                self.ready, self.phase, self.problem, self.loading = event, "ready", "", None
                self.use(event.settings, event.loss)
                self._drop_changes()
                self.effect.forget()
            case Changed():
                if self.ready is not None and event.draft is not None:  # some may have been loaded for it
                    memory_bytes = event.memory_bytes or self.ready.memory_bytes
                    self.ready = replace(self.ready, draft=event.draft or None, memory_bytes=memory_bytes)
                self.effect.changed(self.settings, event.settings)
                self.use(event.settings, event.loss)
                self.keep(self.changes.popleft() if self.changes else {})
            case Released() if self.ready is not None:
                self.ready = replace(self.ready, memory_bytes=event.memory_bytes)
            case Failed(during="load"):
                self.loading = None
                if self.ready is not None:
                    self.phase, self.wanted = "ready", {**self._wanted_before, "pair": self.ready.pair}
                    self.refused = "" if event.kind == "Cancelled" else self.loading_pair
                else:
                    self.phase, self.problem = "failed", visible(event.message)
            case Failed(during="change") if self.changes:
                self.changes.popleft()
                self.loading = None
            case Died():
                words = event.last_words.strip().splitlines()
                code = "" if event.returncode is None else f" (code {event.returncode})"
                self.problem = f"the engine stopped{code}" + (f": {visible(words[-1])}" if words else "")
                self.phase, self.ready, self.loading = "dead", None, None
                self._drop_changes()

    def _drop_changes(self) -> None:
        self.changes.clear()
        self.held.clear()


def _with_change(settings: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with those of the change, which names only some options of methods."""
    options = {**(settings.get("method_options") or {}), **change.get("method_options", {})}
    return {**settings, **change, **({"method_options": options} if options else {})}


def changes_of(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Changes by name, `METHOD.OPTION` too, as the engine takes them."""
    settings: dict[str, Any] = {}
    for name, value in changes.items():
        settings = _with_change(settings, change_of(name, value))
    return settings


def change_of(name: str, value: Any) -> dict[str, Any]:
    """A change of one setting, as the engine takes it; `METHOD.OPTION` names a method's option."""
    return {"method_options": {name: value}} if "." in name else {name: value}
