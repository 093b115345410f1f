"""Commands in Textual's command palette."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from typing import Protocol, cast

from textual.command import DiscoveryHit, Hit, Hits, Provider
from textual.content import Content

from specchat.tui.control.actions import Actions
from specchat.tui.control.commands.command import Command
from specchat.tui.control.commands.registry import COMMANDS


class _HasActions(Protocol):
    @property
    def actions(self) -> Actions: ...


class _HasControl(Protocol):
    control: _HasActions


class CommandsProvider(Provider):
    """Lists the commands in the palette of an app that has `control.actions`."""

    @property
    def _actions(self) -> Actions:
        return cast(_HasControl, self.app).control.actions

    async def discover(self) -> Hits:
        """All commands, before anything is typed."""
        for command in COMMANDS.values():
            yield DiscoveryHit(self._line(command), partial(self._run, command))

    async def search(self, query: str) -> Hits:
        """Commands whose line has all the words typed, those first whose name has them."""
        words = query.lower().split()
        for command in COMMANDS.values():
            line = self._line(command)
            if all(word in line.lower() for word in words):
                shown = Content(line)
                for word in words:
                    shown = shown.highlight_regex(re.compile(re.escape(word), re.IGNORECASE), style="underline")
                yield Hit(_score(f"/{command.name}", words), shown, partial(self._run, command))

    def _line(self, command: Command) -> str:
        key = self._actions.ports.key_of(command.binding or command.name)
        return f"/{command.name}  {command.help}" + (f" ({key})" if key else "")

    async def _run(self, command: Command) -> None:
        actions = self._actions
        if command.needs and actions.chat.background.replaying:
            actions.ports.notify(actions.ports.recording_reason, "warn")
        elif command.needs:
            actions.views.prompt.write(f"/{command.name} ")
            actions.views.prompt.focus()
        else:
            await actions.ports.attempt(command.run(actions, ""))


def _score(name: str, words: Sequence[str]) -> float:
    """From 0 to 1: how much of the name the words are; a name that begins with one comes before all others."""
    begins = any(name.startswith((word, f"/{word}")) for word in words)
    share = sum(len(word) for word in words if word in name) / len(name)
    return 0.1 + 0.4 * min(1.0, share) + 0.5 * begins
