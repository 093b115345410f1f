"""Which controllers settings ask for: one, or several joined by `+`, which the smallest budget decides among."""

from __future__ import annotations

from collections.abc import Collection

from specchat.controllers import CONTROLLERS
from specchat.errors import UsageError
from specchat.registry import Method, not_called
from specchat.settings import Settings


def choose_controllers(settings: Settings) -> tuple[Method, ...]:
    """The controllers that the settings name, `memory` included where a limit is stated.

    Raises:
        UsageError: one that does not exist, one that is named twice, or `off` beside others.
    """
    names = controller_names(settings.controller, CONTROLLERS)
    chosen = [CONTROLLERS[name] for name in names]
    if settings.memory and "memory" not in names and "off" not in names:
        chosen.append(CONTROLLERS["memory"])
    return tuple(chosen)


def controller_names(text: str, known: Collection[str]) -> list[str]:
    """The controllers that a text names, joined by `+`.

    Raises:
        UsageError: one that is not known, one that is named twice, or `off` beside others.
    """
    names = [name.strip() for name in text.split("+")]
    for name in names:
        if name not in known:
            raise not_called(name, "controller", known)
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise UsageError(f"controller = {text!r} names {twice!r} twice")
    if "off" in names and len(names) > 1:
        raise UsageError(f"controller = {text!r}: 'off' never speculates and cannot be joined with others")
    return names


def limits_memory(settings: Settings) -> bool:
    """Whether a controller of these settings counts what the pair's models take."""
    return any(method.name == "memory" for method in choose_controllers(settings))
