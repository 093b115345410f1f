"""Pairs of the user's own: written into models.toml, and taken out again."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomlkit

from specchat.config.catalog import load_catalog, users_models
from specchat.config.directories import shipped_file
from specchat.config.toml_checks import TableLocation
from specchat.config.toml_editing import Document, change_file, put
from specchat.config.toml_file import parse
from specchat.config.values import Catalog, HubSource, ModelSpec, PairSpec, PathSource
from specchat.errors import UsageError


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

    change_file(users_models(), change, _check)
    return users_models()


def own_pair(catalog: Catalog, name: str) -> PairSpec:
    """The user's pair of this name.

    Raises:
        UsageError: there is no such pair, or it is not the user's.
    """
    pair = catalog.pair(name)
    if not pair.yours:
        raise UsageError(f"{name} came with specchat; only pairs of your own can be forgotten")
    return pair


def forget_pair(name: str) -> tuple[str, ...]:
    """Take a pair of the user's own out of models.toml, with those of its models that nothing else needs; their names.

    Weights stay where they are.

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
        for one in _shipped_pairs().values()
        for model in (one["target"], one.get("draft"), *one.get("drafts", ()))
    }
    gone = tuple(model for model in own if model not in needed)

    def change(document: Document) -> None:
        _drop(document, "pairs", name)
        for model in gone:
            _drop(document, "models", model)

    change_file(users_models(), change, _check)
    return gone


def _drop(document: Document, table: str, name: str) -> None:
    del document[table][name]
    if not document[table]:
        del document[table]


def _shipped_pairs() -> Mapping[str, Any]:
    pairs: Mapping[str, Any] = parse(shipped_file("models.toml"))[1]["pairs"]
    return pairs


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


def _check(place: TableLocation, data: dict[str, Any]) -> None:
    load_catalog((place, data))
