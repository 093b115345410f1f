"""The user's config.toml and saved system messages, and the settings that a pair starts with."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specchat.config.directories import config_dir
from specchat.config.file_reading import read_named
from specchat.config.kept_files import replacing
from specchat.config.toml_file import TableLocation, flat_keys, parse_if_there
from specchat.config.values import PairSpec
from specchat.errors import UsageError, cut, nearest, os_errors_as, short
from specchat.settings import Settings

_NAME = re.compile(r"\w[\w-]{0,39}")
_MOST_BYTES = 1 << 20


Problems = Callable[[Mapping[str, str]], Iterable[tuple[str, str]]]
"""What is wrong with a table of texts: pairs of a key and why its value is invalid."""

_TABLES = {"settings": dict, "keys": dict, "app": dict}

NOTIFICATIONS = ("bell", "desktop", "off")


@dataclass(frozen=True)
class AppOptions:
    """The [app] table: how the app behaves towards its user and the terminal."""

    theme: str = ""  # empty: the app's own
    history: bool = True  # remember what was sent, for the next session
    title: bool = True  # show the chat in the terminal's title
    notify: str = "bell"  # when a reply ends while one looks elsewhere: bell, desktop, off
    mouse: bool = True
    animations: bool = True  # ghosts behind the text; rounds told depth by depth where there is time
    ascii: bool = False  # draw with ASCII characters alone
    print_transcript: bool = False  # on leaving, print the conversation to the terminal


def user_settings() -> dict[str, Any]:
    """The user's own defaults: the [settings] table of config.toml, checked."""
    return _settings(*_user_config())


def user_keys(problems: Problems = lambda keys: ()) -> dict[str, str]:
    """The user's own key bindings: the [keys] table of config.toml, id to keys. Refuses what `problems` names."""
    place, data = _user_config()
    keys = _keys(place, data)
    for key, problem in problems(keys):
        raise place.inside("keys").error(key, problem)
    return keys


def user_app(problems: Problems = lambda said: ()) -> AppOptions:
    """How the app behaves: the [app] table of config.toml, checked. `problems` is asked about the theme's name."""
    place, data = _user_config()
    options = _app(place, data)
    for key, problem in problems({"theme": options.theme}):
        raise place.inside("app").error(key, problem)
    return options


def users_config() -> Path:
    return config_dir() / "config.toml"


def check_user_config(place: TableLocation, data: dict[str, Any]) -> None:
    """Refuse a config.toml that could not be read again, before it is written."""
    data = place.read(data, _TABLES)
    for read in (_settings, _keys, _app):
        read(place, data)


def _settings(place: TableLocation, data: dict[str, Any]) -> dict[str, Any]:
    return place.inside("settings").settings(data.get("settings", {}))


def _keys(place: TableLocation, data: dict[str, Any]) -> dict[str, str]:
    place = place.inside("keys")
    return {key: place.typed(key, value, str) for key, value in flat_keys(data.get("keys", {}))}


def _app(place: TableLocation, data: dict[str, Any]) -> AppOptions:
    place = place.inside("app")
    kinds = {field.name: type(field.default) for field in dataclasses.fields(AppOptions)}
    said = place.read(data.get("app", {}), kinds)
    if (notify := said.get("notify", "off")) not in NOTIFICATIONS:
        raise place.error("notify", f"= {short(notify)} is not one of its values{nearest(notify, NOTIFICATIONS)}")
    return AppOptions(**said)


def _user_config() -> tuple[TableLocation, dict[str, Any]]:
    place, data = parse_if_there(users_config()) or (TableLocation(users_config(), ""), {})
    return place, place.read(data, _TABLES)


def starting_pair(wanted: Mapping[str, Any]) -> str:
    """The pair that is loaded where this is wanted: the one it names, else the user's, else the shipped default.

    Raises:
        ConfigError: config.toml says something we cannot accept.
    """
    pair = wanted.get("pair")
    return str(user_settings().get("pair", Settings().pair) if pair is None else pair)


def shipped_settings(pair: PairSpec) -> Settings:
    """The settings that the pair would start with if the user had written none."""
    return Settings().but({**pair.defaults, "pair": pair.name})


def settings_of(pair: PairSpec, *wanted: Mapping[str, Any]) -> Settings:
    """The pair's settings: as shipped, the user's for every pair, the user's for this one, then what is wanted.

    Raises:
        ConfigError: config.toml says something we cannot accept.
        UsageError: what is wanted is unknown or out of range.
    """
    settings = shipped_settings(pair)
    for layer in (user_settings(), pair.own, *wanted, {"pair": pair.name}):
        settings = settings.but(layer)
    return settings


def flat(settings: Settings) -> dict[str, Any]:
    """The settings by the names a user writes: `width`, `suffix.depth`; the pair's name is left out."""
    values = {name: getattr(settings, name) for name in settings.__dataclass_fields__}
    options = values.pop("method_options")
    values.pop("pair")
    return {**values, **options}


def saved_system_messages() -> list[str]:
    """Their names, sorted."""
    try:
        return sorted(file.stem for file in _folder().glob("*.txt") if _NAME.fullmatch(file.stem))
    except OSError:
        return []


def save_system_message(name: str, text: str) -> Path:
    """Save this text under this name, in place of what it was; returns the file.

    Raises:
        UsageError: that is no name, or the file cannot be written.
    """
    if not _NAME.fullmatch(name):
        raise UsageError(f"{cut(name, 40)!r} is not a name: up to 40 letters, digits, - and _")
    file = _folder() / f"{name}.txt"
    with os_errors_as(UsageError, f"{file} cannot be written"), replacing(file) as draft:
        draft.write_text(text + "\n", encoding="utf-8")
    return file


def system_message(words: str) -> str:
    """The saved message of this name, or the words themselves where none has it.

    Raises:
        UsageError: there is one, but it cannot be read.
    """
    if words not in saved_system_messages():
        return words
    return read_named(_folder() / f"{words}.txt", most=_MOST_BYTES).strip("\n")


def _folder() -> Path:
    return config_dir() / "system"
