"""Commands in Textual's command palette."""

from __future__ import annotations

from functools import partial
from typing import Protocol, cast

from textual.command import DiscoveryHit, Hit, Hits, Provider

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
            yield DiscoveryHit(f"/{command.name}", partial(self._run, command), help=self._about(command))

    async def search(self, query: str) -> Hits:
        """Commands whose name or help fits."""
        matcher = self.matcher(query)
        for command in COMMANDS.values():
            text = f"/{command.name}  {command.help}"
            if (score := matcher.match(text)) > 0:
                yield Hit(score, matcher.highlight(text), partial(self._run, command), help=self._about(command))

    def _about(self, command: Command) -> str:
        key = self._actions.ports.key_of(command.binding or command.name)
        return command.help + (f" ({key})" if key else "")

    async def _run(self, command: Command) -> None:
        actions = self._actions
        if command.needs_argument:
            actions.views.prompt.write(f"/{command.name} ")
            actions.views.prompt.focus()
        else:
            await actions.ports.attempt(command.run(actions, ""))
