"""The settings that a reply was written with, those that changed within it, and whether all of it is lossless."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from specchat.engine.protocol.events import Losslessness
from specchat.store.records import Facts, SettingsChange

_ACTS_LATER = {"seed"}
"""A change of it holds from the next reply on."""


def written_with(facts: Facts, settings: Mapping[str, Any], loss: Losslessness | None, piece: int) -> Facts:
    """The facts of a reply whose pieces from index `piece` on are written with these settings."""
    claim = None if loss is None else msgspec.to_builtins(loss)
    if piece == 0 or not facts.settings:
        return replace(facts, settings=dict(settings), loss=claim, changes=[])
    before = _in_force(facts)
    known = before.keys() & settings.keys() - _ACTS_LATER
    changed = {name: settings[name] for name in settings if name in known and settings[name] != before[name]}
    if not changed:
        return facts
    change = SettingsChange(piece, changed, claim)
    return replace(facts, loss=_of_both(facts.loss, claim), changes=[*facts.changes, change])


def changes_text(facts: Facts) -> str:
    """Which settings changed within the reply, as the end of a line about it; empty where none did."""
    names = dict.fromkeys(name for change in facts.changes for name in change.settings)
    return f" · changed within the reply: {', '.join(names)}" if names else ""


def loss_of(facts: Facts) -> Losslessness | None:
    """Whether the whole reply is lossless, and why; None where that is not known."""
    try:
        return msgspec.convert(facts.loss, Losslessness | None)
    except msgspec.ValidationError:  # of a forged file
        return None


def _in_force(facts: Facts) -> dict[str, Any]:
    settings = dict(facts.settings)
    for change in facts.changes:
        settings |= change.settings
    return settings


def _of_both(before: dict[str, Any] | None, now: dict[str, Any] | None) -> dict[str, Any] | None:
    """A reply is lossy once any part of it is; the first such part says why."""
    if before is None or now is None:
        return before or now
    return now if before.get("lossless", True) else before
