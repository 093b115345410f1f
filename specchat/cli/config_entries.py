"""Entries that `specchat config` reads and writes: settings, options of methods, how the app behaves, keys."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from specchat.config import AppOptions, PairSpec, load_catalog, settings_of, user_app, user_keys
from specchat.config.settings_saving import Saved, set_all_for_pair, set_in, unset, unset_in
from specchat.config.user_config import NOTIFICATIONS, flat
from specchat.decoding.families import FAMILIES, methods
from specchat.errors import UsageError, nearest
from specchat.registry import Option, options_of
from specchat.settings import OPTIONS, Settings


def entry(name: str) -> ConfigEntry:
    """The entry with this name: `width`, `suffix.depth`, `app.theme`, `keys.help`.

    Raises:
        UsageError: there is none; names the nearest.
    """
    first, dot, last = name.partition(".")
    app_fields = {field.name: field for field in dataclasses.fields(AppOptions)}
    if not dot:
        known = [*OPTIONS, "stop"]
        if name not in known:
            hint = f"; did you mean {f'app.{name}'!r}?" if name in app_fields else nearest(name, known)
            raise UsageError(f"there is no setting {name!r}{hint}")
        return ConfigEntry(name)
    if first == "app":
        if last not in app_fields:
            raise UsageError(f"app has no option {last!r}{nearest(last, app_fields)}")
        default = app_fields[last].default
        choices = NOTIFICATIONS if last == "notify" else ()
        return _AppOption(name, Option(last, type(default).__name__, default, "", choices=choices))
    if first == "keys":
        from specchat.tui.services.key_bindings import every_key

        if last not in every_key():
            raise UsageError(f"no key binding is called {last!r}{nearest(last, every_key())}")
        return _Key(name)
    families = {one.name: one for _, one in methods()}
    if first not in families:
        raise UsageError(f"no method is called {first!r}{nearest(first, [*families, 'app', 'keys'])}")
    options = {option.name: option for option in options_of(families[first].options)}
    if last not in options:
        raise UsageError(f"{first} has no option {last!r}{nearest(last, options)}")
    return _MethodOption(name, options[last])


@dataclass(frozen=True)
class ConfigEntry:
    """One name that has a value: a setting."""

    name: str

    def parse(self, words: Sequence[str]) -> Any:
        """The value these words mean; raises UsageError with words about the name."""
        if self.name == "stop":
            return Settings().but({"stop": list(words)}).stop
        word = _one(self.name, words)
        if self.name == "pair":
            return load_catalog().pair(word).name
        table = next((table for table in FAMILIES if table.family == self.name), None)
        return table[word].name if table else getattr(Settings().but({self.name: word}), self.name)

    def start(self, pair: PairSpec) -> Any:
        """The value at the next start."""
        return pair.name if self.name == "pair" else flat(settings_of(pair))[self.name]

    def write(self, value: Any, pair: str | None) -> Saved:
        """Make this the value at the next start, for one pair or for all."""
        if self.name == "pair" and pair is not None:
            raise UsageError("pair cannot be a default of a pair")
        return set_in("settings", self.name, value) if pair is None else set_all_for_pair(pair, {self.name: value})

    def forget(self, pair: str | None) -> Saved | None:
        """Take out what was written; None if nothing was."""
        return unset(self.name, pair)


@dataclass(frozen=True)
class _MethodOption(ConfigEntry):
    option: Option

    def parse(self, words: Sequence[str]) -> Any:
        return self.option.parse(_one(self.name, words), self.name.partition(".")[0])

    def start(self, pair: PairSpec) -> Any:
        return flat(settings_of(pair)).get(self.name, self.option.default)


class _OfTheApp(ConfigEntry):
    """An entry of [app] or [keys], which is the same for every pair."""

    def write(self, value: Any, pair: str | None) -> Saved:
        return set_in(*self._place(pair), value)

    def forget(self, pair: str | None) -> Saved | None:
        return unset_in(*self._place(pair))

    def _place(self, pair: str | None) -> tuple[str, str]:
        """The table and the key in it; refuses a pair."""
        if pair is not None:
            raise UsageError(f"{self.name} is the same for every pair")
        table, _, key = self.name.partition(".")
        return table, key


@dataclass(frozen=True)
class _AppOption(_OfTheApp):
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


class _Key(_OfTheApp):
    def parse(self, words: Sequence[str]) -> Any:
        from specchat.tui.services.key_bindings import problems

        keys = _one(self.name, words)
        for id, problem in problems({**user_keys(), self.name.removeprefix("keys."): keys}):
            raise UsageError(f"keys.{id} {problem}")
        return keys

    def start(self, pair: PairSpec) -> Any:
        from specchat.tui.services.key_bindings import keymap, keys_of

        return ",".join(keys_of(self.name.removeprefix("keys."), keymap(user_keys())))


def _one(name: str, words: Sequence[str]) -> str:
    if len(words) != 1:
        raise UsageError(f"{name} takes one value, and {len(words)} were given: {' '.join(words)}")
    return words[0]
