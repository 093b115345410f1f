"""Configurations to compare: `drafter[:policy[:rule[:controller]]][:key=value…]`; settings in force; a loaded pair."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from specchat.config import load_catalog, settings_of, starting_pair
from specchat.decoding.families import FAMILIES
from specchat.drafters import GRAMMAR
from specchat.engine.protocol.environment import engine_environment
from specchat.errors import UsageError, nearest
from specchat.settings import GREEDY, Settings

if TYPE_CHECKING:
    from specchat.engine.server.loaded_pair import LoadedPair


def prepare_environment(threads: int = 0) -> None:
    """Set an engine's environment before torch is first imported: waiting threads sleep."""
    os.environ.update(engine_environment(threads))


def settings_in_force(chosen: Mapping[str, Any], **fallback: Any) -> Settings:
    """The pair's default settings but greedy, then `fallback`, then the chosen ones."""
    return settings_of(load_catalog().pair(starting_pair(chosen)), GREEDY, fallback, chosen)


def load_pair(
    settings: Settings, say: Callable[[str], None] = lambda what: None, others: Sequence[Settings] = ()
) -> LoadedPair:
    """The pair the settings name, with the draft models that they or `others` use; what is missing is fetched first."""
    from specchat.engine.protocol.events import Event, Loading
    from specchat.engine.protocol.stage_text import loading_text
    from specchat.engine.server.pair_loading import Loader

    def emit(event: Event) -> None:
        if isinstance(event, Loading):
            share = f" {100 * event.done // event.total} %" if event.total else ""
            say(f"{loading_text(event)}{share}")

    return Loader(load_catalog(), emit, lambda: False).load(settings, others)


AUTO = "auto"
"""The settings as they are: the pair's own defaults, and whatever flags were given."""

EVERY = "every"
"""Every drafter that speaks without a constraint, with the pair's other methods."""

SHAPE = ("width", "depth", "nodes")
"""Settings that a configuration may set. What changes the text itself must be the same for all that are compared."""


@dataclass(frozen=True)
class Configuration:
    """One way to decode: plain, or a combination of methods."""

    name: str
    settings: Settings

    @property
    def plain(self) -> bool:
        return self.settings.controller == "off"


def plain_of(settings: Settings) -> Configuration:
    """The baseline of every ratio: the same settings without speculation."""
    return Configuration("plain", settings.but({"controller": "off"}))


def parse_configurations(text: str, base: Settings) -> tuple[Configuration, ...]:
    """The configurations a comparison names; each once.

    Args:
        text: `"auto,prompt_lookup:chain:nodes=4"`. A piece of digits goes on with the value before it, so that
            `expansion.widths=3,2,1` can be written.
        base: what is not said is taken from here, except the controller, which is then `fixed`: what was named
            is what runs.

    Raises:
        UsageError: a word that is not a method, a key that is not a setting, or a value out of range.
    """
    return tuple(Configuration(piece, _settings(piece, base)) for piece in dict.fromkeys(separate(text)))


@dataclass(frozen=True)
class SpeltOut:
    """A comparison in which `every` is spelt out.

    Args:
        every: the drafters that it became; one that turns out not to fit the loaded pair is left out, not refused.
        notes: why others are left out.
    """

    compare: str
    every: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


AS_WRITTEN = SpeltOut("")
"""Where a comparison says `every` nowhere."""


def with_every(text: str, missing: Mapping[str, str]) -> SpeltOut:
    """The same comparison with `every` spelt out.

    Args:
        missing: for every drafter what it lacks here; empty where nothing.
    """
    if EVERY not in (pieces := separate(text)):
        return SpeltOut(text)
    speaking = {name: what for name, what in missing.items() if name not in ("none", GRAMMAR)}
    here = tuple(name for name, what in speaking.items() if not what)
    spelt = [name for piece in pieces for name in (here if piece == EVERY else [piece])]
    notes = tuple(f"left out: {name} {what}" for name, what in speaking.items() if what)
    return SpeltOut(",".join(spelt), here, notes)


def separate(text: str) -> list[str]:
    """The pieces between commas; one of digits goes on with the value before it.

    Raises:
        UsageError: there are none.
    """
    pieces: list[str] = []
    for piece in (word.strip() for word in text.split(",")):
        if piece.isdecimal() and pieces and "=" in pieces[-1]:
            pieces[-1] += f",{piece}"
        elif piece:
            pieces.append(piece)
    if not pieces:
        raise UsageError("--compare names no configuration; try --compare auto")
    return pieces


def _settings(piece: str, base: Settings) -> Settings:
    words = piece.split(":")
    names = [word for word in words if "=" not in word]
    changes: dict[str, Any] = {}
    if names == [AUTO]:
        names = []
    elif not names or "=" in words[0]:
        raise UsageError(f"--compare {piece!r} must begin with a drafter or with {AUTO}")
    else:
        changes["controller"] = "fixed"
    if len(names) > len(FAMILIES):
        raise UsageError(f"--compare {piece!r} names more than drafter, policy, rule and controller")
    for table, name in zip(FAMILIES, names, strict=False):
        if name not in table:
            known = [*table, *([AUTO, EVERY] if table is FAMILIES[0] else [])]
            raise UsageError(f"--compare {piece!r}: no {table.family} is called {name!r}{nearest(name, known)}")
        changes[table.family] = name
    options: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            continue
        if "." in key:
            options[key] = value
        elif key in SHAPE:
            changes[key] = value
        else:
            hint = nearest(key, (*SHAPE, "METHOD.OPTION"))
            raise UsageError(f"--compare {piece!r}: {key!r} cannot be set there{hint}")
    return base.but({**changes, **({"method_options": options} if options else {})})
