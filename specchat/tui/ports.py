"""Protocols of the functions that controllers and services use of the app; they never get the app itself."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from textual.screen import Screen
from textual.timer import Timer
from textual.widget import Widget

from specchat.engine.client.client import Link

_Result = TypeVar("_Result")


class Notify(Protocol):
    """Shows one remark in the line above the prompt."""

    def __call__(self, text: str, role: str = "dim", /) -> None: ...


class Redraw(Protocol):
    """Draws what is known now; cheap where nothing changed."""

    def __call__(self) -> None: ...


class RunInBackground(Protocol):
    """Runs a coroutine beside the app's own work; what it raises ends it, not the app."""

    def __call__(self, work: Coroutine[Any, Any, None], /) -> None: ...


class CallLater(Protocol):
    """Calls a function on the app's own thread, soon; may be used from any thread."""

    def __call__(self, what: Callable[..., object], /, *given: object) -> object: ...


class KeyNames(Protocol):
    """The keys of a binding as people write them; empty where it has none."""

    def __call__(self, id: str, /) -> str: ...


class KeyHint(Protocol):
    """`Esc closes`, after `before`: a binding's first key and what it does; empty where it has no key."""

    def __call__(self, id: str, does: str, before: str = "", /) -> str: ...


class StartTimer(Protocol):
    """Calls a function after so many seconds, once or again and again; the timer can be stopped."""

    def __call__(self, seconds: float, callback: Callable[[], object], /) -> Timer: ...


class PushScreen(Protocol):
    """Shows a screen over the chat; the callback gets what it was left with."""

    def __call__(
        self,
        screen: Screen[_Result],
        callback: Callable[[_Result | None], object] | None = None,
        /,
    ) -> object: ...


class Attempt(Protocol):
    """Awaits something; a SpecchatError is shown as a remark."""

    def __call__(self, what: Awaitable[None], /) -> Awaitable[None]: ...


class RunningServer(Protocol):
    """An HTTP server that answers with replies of the app's engine."""

    @property
    def address(self) -> str: ...
    @property
    def key(self) -> str: ...
    def stop(self) -> None: ...


class StartServer(Protocol):
    """Starts such a server in a thread of its own.

    Args:
        connect: links it to the engine.
        asked: called before a reply is asked for, with the name of the program that asks.
        ended: called from that thread if the server ends by itself, with the reason.
    Raises SpecchatError if it cannot be started.
    """

    def __call__(
        self,
        port: int,
        connect: Callable[[Callable[[], None]], Link],
        asked: Callable[[str], None],
        ended: Callable[[str], None],
        /,
    ) -> RunningServer: ...


@dataclass(frozen=True)
class AppPorts:
    """The functions of the running app that controllers use."""

    notify: Notify
    redraw: Redraw
    key_of: KeyNames
    key_hint: KeyHint
    attempt: Attempt
    new_chat: Callable[[], Awaitable[None]]
    show_chat: Callable[[], Awaitable[None]]  # as it is now
    after_refresh: CallLater
    set_timer: StartTimer
    set_interval: StartTimer
    push_screen: PushScreen
    screen: Callable[[], Screen[Any]]  # the one that is shown
    chat_screen: Callable[[], Screen[Any]]  # the one below all others
    focused: Callable[[], Widget | None]
    animated: Callable[[], bool]
    copy: Callable[[str, str], None]  # a text, and what it is
    suspend: Callable[[], AbstractContextManager[None]]
    repaint_all: Callable[[], object]
    exit: Callable[[], None]
    theme_names: Callable[[], Sequence[str]]
    set_theme: Callable[[str], None]
    search_themes: Callable[[], None]
    run_in_background: RunInBackground
    call_later: CallLater
    write: Callable[[str], None]  # a sequence that draws nothing, to the terminal
    bell: Callable[[], None]
    app_focused: Callable[[], bool]  # whether the terminal's window has the focus
    tick: Callable[[], object]  # asks the app to look for events

    @property
    def busy_reason(self) -> str:
        """The remark that something has to wait for the running reply."""
        return "a reply is being written" + self.key_hint("stop", "stops it", "; ")

    @property
    def recording_reason(self) -> str:
        """The remark that something cannot be done with a recording."""
        return "a recording is being played" + self.key_hint("stop", "leaves it", "; ")
