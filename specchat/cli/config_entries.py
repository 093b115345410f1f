"""Entries that `specchat config` reads and writes: settings, options of methods, how the app behaves, keys."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from specchat.config import AppOptions, PairSpec, flat, load_catalog, settings_of, user_app, user_keys
from specchat.config.settings_saving import Saved, set_app, set_for_pair, set_general, set_key, unset, unset_in
from specchat.config.user_config import NOTIFICATIONS
from specchat.decoding.families import FAMILIES, methods
from specchat.errors import UsageError, nearest
from specchat.registry import Method, Option, options_of
from specchat.settings import OPTIONS, Settings


class ConfigEntry(Protocol):
    """One name that has a value."""

    def parse(self, words: Sequence[str]) -> Any:
        """The value these words mean; raises UsageError with words about the name."""

    def start(self, pair: PairSpec) -> Any:
        """The value at the next start."""

    def write(self, value: Any, pair: str | None) -> Saved:
        """Make this the value at the next start, for one pair or for all."""

    def forget(self, pair: str | None) -> Saved | None:
        """Take out what was written; None if nothing was."""


def entry(name: str) -> ConfigEntry:
    """The entry with this name: `width`, `suffix.depth`, `app.theme`, `keys.help`.

    Raises:
        UsageError: there is none; names the nearest.
    """
    first, dot, last = name.partition(".")
    if not dot:
        return _setting(name)
    if first == "app":
        fields = _app_fields()
        if last not in fields:
            raise UsageError(f"app has no option {last!r}{nearest(last, fields)}")
        default = fields[last].default
        choices = NOTIFICATIONS if last == "notify" else ()
        return _AppOption(name, Option(last, type(default).__name__, default, "", choices=choices))
    if first == "keys":
        return _key(name, last)
    families = {one.name: one for _, one in methods()}
    if first not in families:
        raise UsageError(f"no method is called {first!r}{nearest(first, [*families, 'app', 'keys'])}")
    known = _options(families[first])
    if last not in known:
        raise UsageError(f"{first} has no option {last!r}{nearest(last, known)}")
    return _MethodOption(name, known[last])


@dataclass(frozen=True)
class _Setting:
    name: str

    def parse(self, words: Sequence[str]) -> Any:
        if self.name == "stop":
            return Settings().but({"stop": list(words)}).stop
        word = _one(self.name, words)
        if self.name == "pair":
            return load_catalog().pair(word).name
        table = next((table for table in FAMILIES if table.family == self.name), None)
        return table[word].name if table else getattr(Settings().but({self.name: word}), self.name)

    def start(self, pair: PairSpec) -> Any:
        return pair.name if self.name == "pair" else flat(settings_of(pair))[self.name]

    def write(self, value: Any, pair: str | None) -> Saved:
        if self.name == "pair" and pair is not None:
            raise UsageError("pair cannot be a default of a pair")
        return set_for_pair(pair, self.name, value) if pair is not None else set_general(self.name, value)

    def forget(self, pair: str | None) -> Saved | None:
        return unset(self.name, pair)


@dataclass(frozen=True)
class _MethodOption(_Setting):
    option: Option

    def parse(self, words: Sequence[str]) -> Any:
        return self.option.parse(_one(self.name, words), self.name.partition(".")[0])

    def start(self, pair: PairSpec) -> Any:
        return flat(settings_of(pair)).get(self.name, self.option.default)


@dataclass(frozen=True)
class _AppOption:
    name: str
    option: Option

    def parse(self, words: Sequence[str]) -> Any:
        value = self.option.parse(_one(self.name, words), "app")
        if self.option.name == "theme":
            from specchat.tui.text.theme import unknown_theme

            for _, problem in unknown_theme({"theme": value}):
                raise UsageError(f"{self.name} {problem}")
        return value

    def start(self, pair: PairSpec) -> Any:
        return getattr(user_app(), self.option.name)

    def write(self, value: Any, pair: str | None) -> Saved:
        _refuse_pair(self.name, pair)
        return set_app(self.option.name, value)

    def forget(self, pair: str | None) -> Saved | None:
        _refuse_pair(self.name, pair)
        return unset_in("app", self.option.name)


@dataclass(frozen=True)
class _Key:
    name: str
    id: str

    def parse(self, words: Sequence[str]) -> Any:
        from specchat.tui.services.key_bindings import problems

        keys = _one(self.name, words)
        for id, problem in problems({**user_keys(), self.id: keys}):
            raise UsageError(f"keys.{id} {problem}")
        return keys

    def start(self, pair: PairSpec) -> Any:
        from specchat.tui.services.key_bindings import keymap, keys_of

        return ",".join(keys_of(self.id, keymap(user_keys())))

    def write(self, value: Any, pair: str | None) -> Saved:
        _refuse_pair(self.name, pair)
        return set_key(self.id, value)

    def forget(self, pair: str | None) -> Saved | None:
        _refuse_pair(self.name, pair)
        return unset_in("keys", self.id)


def _setting(name: str) -> ConfigEntry:
    known = [*OPTIONS, "stop"]
    if name not in known:
        hint = f"; did you mean {f'app.{name}'!r}?" if name in _app_fields() else nearest(name, known)
        raise UsageError(f"there is no setting {name!r}{hint}")
    return _Setting(name)


def _options(method: Method) -> dict[str, Option]:
    return {option.name: option for option in options_of(method.options)}


def _app_fields() -> dict[str, dataclasses.Field[Any]]:
    return {field.name: field for field in dataclasses.fields(AppOptions)}


def _key(name: str, id: str) -> ConfigEntry:
    from specchat.tui.services.key_bindings import every_key

    if id not in every_key():
        raise UsageError(f"no key binding is called {id!r}{nearest(id, every_key())}")
    return _Key(name, id)


def _one(name: str, words: Sequence[str]) -> str:
    if len(words) != 1:
        raise UsageError(f"{name} takes one value, and {len(words)} were given: {' '.join(words)}")
    return words[0]


def _refuse_pair(name: str, pair: str | None) -> None:
    if pair is not None:
        raise UsageError(f"{name} is the same for every pair")
