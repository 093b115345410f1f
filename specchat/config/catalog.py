"""Every model and pair known here: the shipped models.toml, the user's own on top, mirrors added."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from specchat.config.directories import config_dir, shipped_file
from specchat.config.mirrors import load_mirrors, with_mirrors
from specchat.config.strict import Place
from specchat.config.tables import read_models, read_pairs, refuse_unknown_models
from specchat.config.toml_file import parse, parse_if_there
from specchat.config.values import Catalog


def load_catalog(users: tuple[Place, dict[str, Any]] | None = None) -> Catalog:
    """What the shipped models.toml says, the user's own on top of it (by name), mirrors added.

    `users` stands for the user's file before it is written.

    Raises:
        ConfigError: a file says something we cannot accept; the line names file, table, key and value.
    """
    place, data = parse(shipped_file("models.toml"))
    models, pairs = read_models(place, data), read_pairs(place, data)
    places = {name: place.inside(f"pairs.{name}") for name in pairs}
    if users is None:
        users = parse_if_there(users_models())
    if users is not None:
        place, data = users
        models |= read_models(place, data)
        pairs |= (own := read_pairs(place, data, pairs))
        places |= {name: place.inside(f"pairs.{name}") for name in own}
    for pair in pairs.values():
        refuse_unknown_models(places[pair.name], pair, models)
    return Catalog(with_mirrors(models, load_mirrors()), pairs)


def users_models() -> Path:
    """Where the user's own models and pairs stand."""
    return config_dir() / "models.toml"
