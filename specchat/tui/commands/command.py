"""What a slash command is."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from specchat.tui.screens.chat_screen import ChatScreen
from specchat.tui.state.prompt_text import values_of_usage


@dataclass(frozen=True)
class Command:
    """A command that the user can run by name."""

    name: str
    help: str
    run: Callable[[ChatScreen, str], Awaitable[None]]
    usage: str = ""  # what follows the name; in brackets if it may be left out
    binding: str = ""  # the id of its key, where that is not its name
    values: Callable[[ChatScreen, list[str]], Sequence[str]] | None = None  # what may follow these arguments

    def choices(self, screen: ChatScreen, given: list[str]) -> Sequence[str]:
        """The values that may follow the arguments given so far."""
        return self.values(screen, given) if self.values else values_of_usage(self.usage, len(given))

    @property
    def needs(self) -> int:
        """How many arguments must be given."""
        return sum(not word.startswith("[") for word in self.usage.split())
