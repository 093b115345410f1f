"""What the screens of a race and of a benchmark share: settings, seeds and ids of their replies, and their end."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from textual.screen import ModalScreen

from specchat.engine.client.race import RACE_DEFAULTS, fresh_seed, refuse_plain
from specchat.engine.protocol.commands import Command
from specchat.engine.protocol.events import Event
from specchat.errors import UsageError
from specchat.settings import GREEDY
from specchat.tui.services.context import AppServices
from specchat.tui.state.chat import Chat
from specchat.tui.state.races import RacePlayback, RaceSeries, RaceSetup


class RunScreen(ModalScreen[None]):
    """Sends a run's commands to the engine and gives it the answers. The chat and its settings stay as they are."""

    run: RacePlayback | RaceSeries

    def __init__(self, context: AppServices) -> None:
        """Raises UsageError if the engine is not free, or the settings are plain decoding."""
        if context.session.player is not None:
            raise UsageError("a recording cannot race: there is no engine")
        context.session.require_free()
        refuse_plain(context.chat.engine.settings)
        super().__init__()
        self.context = context
        ready, settings = context.chat.engine.ready, {**context.chat.engine.settings, **changes(context.chat)}
        self.setup = RaceSetup(ready.pair if ready else "", ready.dtype if ready else "", settings)

    @abstractmethod
    def show(self) -> None:
        """Draw the state at this moment."""

    def begin_run(self, run: RacePlayback | RaceSeries, command: Command) -> None:
        """The engine belongs to this run from now on; `command` begins it."""
        self.run, self.context.chat.background.racing = run, True
        self.context.session.send(command)

    def take(self, events: Sequence[Event]) -> None:
        for event in events:
            if (command := self.run.apply(event)) is not None:
                self.context.session.send(command)
        self.show()

    def stop_run(self) -> bool:
        """Stop what runs; False if nothing does."""
        command = self.run.stop()
        if command is not None:
            self.context.session.send(command)
        return command is not None

    def on_unmount(self) -> None:
        """The engine is free again, whoever closed the screen."""
        self.context.chat.background.racing = False

    def leave(self) -> None:
        self.stop_run()
        self.context.chat.background.racing = False
        while (top := self.app.screen) is not self:  # help, or a list of commands
            top.dismiss(None)
        self.dismiss(None)


def changes(chat: Chat) -> dict[str, Any]:
    """Settings of a race that differ from the chat's: greedy, unless the user asked for a temperature."""
    asked, settings = chat.engine.wanted, chat.engine.settings
    kept = GREEDY.keys() if "temperature" in asked else asked.keys()
    changed = {name: value for name, value in RACE_DEFAULTS.items() if name not in kept}
    if "max_tokens" in changed:
        changed["max_tokens"] = min(settings.get("max_tokens", 0), changed["max_tokens"])
    return {name: value for name, value in changed.items() if settings.get(name, value) != value}


def seed(chat: Chat) -> int:
    """The seed that the settings fix, else a new one."""
    pinned = int(chat.engine.settings.get("seed", -1))
    return pinned if pinned >= 0 else fresh_seed()
