"""Which controllers settings ask for: one, or several joined by `+`, which the smallest budget decides among."""

from __future__ import annotations

from specchat.controllers import CONTROLLERS
from specchat.errors import UsageError
from specchat.registry import Method
from specchat.settings import Settings


def choose_controllers(settings: Settings) -> tuple[Method, ...]:
    """The controllers that the settings name, `memory` included where a limit is stated.

    Raises:
        UsageError: one that does not exist, one that is named twice, or `off` beside others.
    """
    names = [name.strip() for name in settings.controller.split("+")]
    chosen = [CONTROLLERS[name] for name in names]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise UsageError(f"controller = {settings.controller!r} names {twice!r} twice; once is enough")
    if "off" in names and len(names) > 1:
        raise UsageError(f"controller = {settings.controller!r}: 'off' never speculates, whatever stands beside it")
    if settings.memory and "memory" not in names and "off" not in names:
        chosen.append(CONTROLLERS["memory"])
    return tuple(chosen)


def limits_memory(settings: Settings) -> bool:
    """Whether a controller of these settings counts what the pair's models take."""
    return any(method.name == "memory" for method in choose_controllers(settings))
