"""Flags generated from the one list of settings, so that a new setting is a flag the moment it is listed."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping
from contextlib import suppress
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specchat.decoding.families import FAMILIES, methods
from specchat.errors import SpecchatError
from specchat.registry import Option, options_of
from specchat.settings import OPTIONS, Settings, parse_method_options

if TYPE_CHECKING:
    from specchat.config import Catalog

_PANEL = "Settings (a pair's own defaults come before those named here)"

_VALUES = {"int": "INTEGER", "float": "FLOAT", "str": "TEXT", "bool": "true|false"}


class Output(StrEnum):
    """How a command prints its result."""

    text = "text"
    json = "json"
    jsonl = "jsonl"


def takes_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command all settings as flags; it receives the ones that were used as `settings`, checked."""
    signature = inspect.signature(command, eval_str=True)
    own = [p for name, p in signature.parameters.items() if name != "settings"]
    flags = [_flag(OPTIONS[name]) for name in dict.fromkeys((*_FIRST, *OPTIONS))]

    @functools.wraps(command)
    def wrapped(**given: Any) -> None:
        chosen = {name: value for name in OPTIONS if (value := given.pop(name)) is not None}
        if stop := given.pop("stop"):
            chosen["stop"] = list(stop)
        if pairs := given.pop("set"):
            chosen["method_options"] = parse_method_options(pairs)
        checked = Settings().but(chosen)  # refuse what is out of range before anything starts
        chosen |= {name: getattr(checked, name) for name in chosen if name in OPTIONS}
        command(settings=chosen, **given)

    parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own] + flags + _REPEATED
    wrapped.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    wrapped.__annotations__ = {p.name: p.annotation for p in parameters}
    return wrapped


def as_flags(settings: Mapping[str, Any]) -> list[str]:
    """The command line words that give these settings again."""
    words: list[str] = []
    for name, value in settings.items():
        if name == "stop":
            words += [f"--stop={text}" for text in value]
        elif name == "method_options":
            words += [f"--set={key}={setting}" for key, setting in value.items()]
        else:
            words.append(f"--{name.replace('_', '-')}={value}")
    return words


_FIRST = ("pair", "temperature", "top_p", "max_tokens", "drafter", "nodes", "depth", "width")
"""The flags that are used most; the others follow in the order of their list."""


_MOST_NAMES = 12
"""So many names are listed in the help of a flag."""


def _flag(option: Option) -> inspect.Parameter:
    known = list(next((table for table in FAMILIES if table.family == option.name), option.choices))
    names = ", ".join(known) if len(known) <= _MOST_NAMES else f"{len(known)} of them, listed by specchat methods"
    default = "" if option.default == "" else f"default {str(option.default).lower()}"
    about = "; ".join(text for text in (option.range_text() or names, default) if text)
    extra = typer.Option(
        *(("--pair", "--model") if option.name == "pair" else (f"--{option.name.replace('_', '-')}",)),
        metavar=_VALUES[option.kind],
        help=f"{option.help} ({about})" if about else option.help,  # in brackets it would be taken for markup
        show_default=False,
        rich_help_panel=_PANEL,
        autocompletion=pair_names if option.name == "pair" else lambda: known,
    )
    return _parameter(option.name, str | None, extra)  # its own `parse` says what is wrong with a value


def _parameter(name: str, kind: Any, extra: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind, extra])


_REPEATED = [
    _parameter(
        "stop",
        list[str] | None,
        typer.Option("--stop", help="text that ends the reply; may be given again", rich_help_panel=_PANEL),
    ),
    _parameter(
        "set",
        list[str] | None,
        typer.Option(
            "--set",
            metavar="METHOD.OPTION=VALUE",
            help="a method's own option",
            rich_help_panel=_PANEL,
            autocompletion=lambda: [f"{name}=" for name in method_options()],
        ),
    ),
]
"""The flags that may be given again."""


def setting_names() -> list[str]:
    """Every setting, method's option and option of the app, for shell completion."""
    from specchat.config import AppOptions

    app = [f"app.{field.name}" for field in dataclasses.fields(AppOptions)]
    return [*OPTIONS, "stop", *app, *method_options()]


def pair_names() -> list[str]:
    return list(_catalog().pairs)


def model_names() -> list[str]:
    """Every pair, model and trained drafter, for shell completion."""
    catalog = _catalog()
    return list(dict.fromkeys([*catalog.pairs, *catalog.models, *catalog.drafters]))


def _catalog() -> Catalog:
    """The catalog, empty where it cannot be read: the command itself reports that."""
    from specchat.config import Catalog, load_catalog

    with suppress(SpecchatError):
        return load_catalog()
    return Catalog({}, {})


def method_options() -> list[str]:
    """`METHOD.OPTION` of every method."""
    return [f"{method.name}.{option.name}" for _, method in methods() for option in options_of(method.options)]
