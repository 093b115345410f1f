"""What parts of the app ask of it, as protocols: a part is handed these functions and objects, never the app."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Protocol


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
