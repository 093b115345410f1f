"""Writes into the user's own config.toml and models.toml: settings, keys, options of the app, and pairs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import tomlkit

from specchat.config.catalog import load_catalog, users_models
from specchat.config.directories import shipped_file
from specchat.config.toml_editing import Document, as_table, change_file, put, take_out
from specchat.config.toml_file import TableLocation, parse
from specchat.config.user_config import (
    check_user_config,
    flat,
    settings_of,
    shipped_settings,
    user_settings,
    users_config,
)
from specchat.config.values import Catalog, HubSource, ModelSpec, PairSpec, PathSource
from specchat.errors import UsageError
from specchat.settings import SPECULATION, Settings


@dataclass(frozen=True)
class Saved:
    """The keys that were written, and where; and those removed because without them the value is the same."""

    file: Path
    table: str
    written: tuple[str, ...]
    removed: tuple[str, ...] = ()

    def line(self) -> str:
        """`width, depth in /…/models.toml [pairs.smol.defaults]`."""
        parts = [", ".join(self.written)] if self.written else []
        parts += [f"{', '.join(self.removed)} (back to what was shipped)"] if self.removed else []
        return f"{'; '.join(parts)} in {self.file} [{self.table}]"


def save(
    pair_name: str, current: Mapping[str, Any], *, into_pair: bool, options: Mapping[str, Any] | None = None
) -> list[Saved]:
    """Make the current settings those that the pair starts with.

    How to speculate goes to the pair, because it suits no other. The rest goes to every pair, unless `into_pair` or
    unless this pair has a value of its own, which would hide the general one. Only what differs is written.

    `options` holds the defaults of `METHOD.OPTION`: settings name only those that were set.

    Raises:
        UsageError: no such pair.
        ConfigError: a file cannot be read or written; it is as it was.
    """
    pair = load_catalog().pair(pair_name)
    options = options or {}
    wanted, start = flat(Settings().but(current)), {**options, **flat(settings_of(pair))}
    changed = {name: value for name, value in wanted.items() if name not in start or start[name] != value}
    narrow = {n: v for n, v in changed.items() if into_pair or n in SPECULATION or "." in n or n in pair.own}
    general = {name: value for name, value in changed.items() if name not in narrow}
    elsewhere = {**options, **flat(Settings().but(pair.defaults).but(user_settings()))}
    shipped = {**options, **flat(shipped_settings(pair))}
    saved = [_write(users_config(), ("settings",), *_split(general, shipped))] if general else []
    return saved + ([_write(users_models(), _pair_path(pair_name), *_split(narrow, elsewhere))] if narrow else [])


def start_with(pair_name: str) -> Saved:
    load_catalog().pair(pair_name)
    return _write(users_config(), ("settings",), *_split({"pair": pair_name}, {"pair": Settings().pair}))


def set_in(table: str, name: str, value: Any) -> Saved:
    """Write a setting of every pair, [settings], how the app behaves, [app], or a binding, [keys], into config.toml."""
    return _write(users_config(), (table,), {name: value}, [])


def unset_in(table: str, name: str) -> Saved | None:
    """Forget what the user wrote in a table of config.toml; None if nothing was written."""
    saved = _write(users_config(), (table,), {}, [name])
    return saved if saved.removed else None


def set_all_for_pair(pair_name: str, values: Mapping[str, Any]) -> Saved:
    """Write settings into the pair's entry of the user's models.toml: all of them, or none."""
    load_catalog().pair(pair_name)
    return _write(users_models(), _pair_path(pair_name), values, [])


def unset(name: str, pair_name: str | None = None) -> Saved | None:
    """Forget what the user wrote for a setting; None if nothing was written."""
    if pair_name is None:
        return unset_in("settings", name)
    saved = _write(users_models(), _pair_path(load_catalog().pair(pair_name).name), {}, [name])
    return saved if saved.removed else None


def _pair_path(name: str) -> tuple[str, ...]:
    return ("pairs", name, "defaults")


def _split(values: Mapping[str, Any], without: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """What must be written, and what need not: removing it gives the same value."""
    kept = {name: value for name, value in values.items() if name not in without or without[name] != value}
    return kept, [name for name in values if name not in kept]


def _write(file: Path, path: tuple[str, ...], values: Mapping[str, Any], remove: list[str]) -> Saved:
    gone: list[str] = []

    def change(document: Document) -> None:
        for name in remove:
            found = [take_out(document, (*path, *rest), key) for rest, key in _spellings(path, name)]
            gone.extend([name] if True in found else [])
        for name, value in values.items():
            rest, key = _spelling_in(document, path, name)
            put(document, (*path, *rest), key, value)

    if values or file.is_file():
        change_file(file, change, partial(_check, file))
    return Saved(file, ".".join(path), tuple(values), tuple(gone))


def _spellings(path: tuple[str, ...], name: str) -> list[tuple[tuple[str, ...], str]]:
    """The places below a table where a name may be, the usual one first: a name with a dot has two."""
    first, dot, last = name.partition(".")
    if not dot:
        return [((), name)]
    within = () if path == ("keys",) else ("method_options",)
    return [(within, name), ((*within, first), last)]


def _spelling_in(document: Document, path: tuple[str, ...], name: str) -> tuple[tuple[str, ...], str]:
    """The place where the file has this name already, or the usual one."""
    spellings = _spellings(path, name)
    for rest, key in spellings:
        table = document
        for step in (*path, *rest):
            table = as_table(table.get(step, {}), step)
        if key in table:
            return rest, key
    return spellings[0]


def _check(file: Path, place: TableLocation, data: dict[str, Any]) -> None:
    """Refuse what specchat could not read again."""
    if file == users_config():
        check_user_config(place, data)
    else:
        load_catalog((place, data))


def write_pair(pair: PairSpec, models: tuple[ModelSpec, ...]) -> Path:
    """Write the pair and the models that are new with it; the file they went into.

    Raises:
        ConfigError: the file cannot be read or written, or could not be read afterwards; it is as it was.
    """

    def change(document: Document) -> None:
        for model in models:
            for key, value in _model_table(model).items():
                put(document, ("models", model.name), key, value)
        drafts = {"draft": pair.draft} if len(pair.drafts) < 2 else {"drafts": list(pair.drafts)}
        for key, value in {"target": pair.target, **drafts, "summary": pair.summary}.items():
            if value:
                put(document, ("pairs", pair.name), key, value)
        for key, value in pair.own.items():
            put(document, ("pairs", pair.name, "defaults"), key, value)

    change_file(users_models(), change, partial(_check, users_models()))
    return users_models()


def own_pair(catalog: Catalog, name: str) -> PairSpec:
    """The user's pair of this name; UsageError if there is none, or if it is not the user's."""
    pair = catalog.pair(name)
    if not pair.yours:
        raise UsageError(f"{name} came with specchat; only pairs of your own can be forgotten")
    return pair


def forget_pair(name: str) -> tuple[str, ...]:
    """Take a pair of the user's own out of models.toml, with those of its models that nothing else needs; their names.

    Raises:
        UsageError: there is no such pair, or it is not the user's.
    """
    catalog = load_catalog()
    pair = own_pair(catalog, name)
    written = parse(users_models())[1].get("models", {})
    own = [model.name for model in catalog.models_of(pair) if model.name in written]
    needed = {model for one in catalog.pairs.values() if one.name != name for model in one.models}
    needed |= {drafter.target for drafter in catalog.drafters.values()}
    needed |= {
        model
        for one in parse(shipped_file("models.toml"))[1]["pairs"].values()
        for model in (one["target"], one.get("draft"), *one.get("drafts", ()))
    }
    gone = tuple(model for model in own if model not in needed)

    def change(document: Document) -> None:
        _drop(document, "pairs", name)
        for model in gone:
            _drop(document, "models", model)

    change_file(users_models(), change, partial(_check, users_models()))
    return gone


def _drop(document: Document, table: str, name: str) -> None:
    del document[table][name]
    if not document[table]:
        del document[table]


def _model_table(model: ModelSpec) -> dict[str, Any]:
    """The entry of a model with one source: a file or folder here, or a repository."""
    (source,) = model.sources
    said: dict[str, Any] = {}
    if isinstance(source, PathSource):
        said["path"] = str(source.path)
    elif isinstance(source, HubSource):
        said = {"hub": source.repo} | ({"file": source.file} if source.file else {})
    inline = tomlkit.inline_table()
    inline.update(said)
    sources = tomlkit.array()
    sources.append(inline)
    about = {"context_tokens": model.context_tokens, "parameters": model.parameters}
    return {"sources": sources, **{key: value for key, value in about.items() if value}}
