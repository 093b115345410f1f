"""Every model, pair and trained drafter: the shipped models.toml, the user's own on top of it, mirrors added."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from specchat.config.directories import config_dir, shipped_file
from specchat.config.mirrors import load_mirrors, with_mirrors
from specchat.config.tables import read_drafters, read_models, read_pairs, refuse_unknown_models, refuse_unknown_target
from specchat.config.toml_checks import TableLocation
from specchat.config.toml_file import parse, parse_if_there
from specchat.config.values import Catalog


def load_catalog(users: tuple[TableLocation, dict[str, Any]] | None = None) -> Catalog:
    """What the shipped models.toml says, the user's own on top of it (by name), mirrors added.

    `users` stands for the user's file before it is written.

    Raises:
        ConfigError: a file says something we cannot accept; the line names file, table, key and value.
    """
    place, data = parse(shipped_file("models.toml"))
    models, pairs, drafters = read_models(place, data), read_pairs(place, data), read_drafters(place, data)
    drafter_places = {name: place.inside(f"drafters.{name}") for name in drafters}
    places = {name: place.inside(f"pairs.{name}") for name in pairs}
    if users is None:
        users = parse_if_there(users_models())
    if users is not None:
        place, data = users
        models |= read_models(place, data)
        pairs |= (own := read_pairs(place, data, pairs))
        drafters |= (trained := read_drafters(place, data))
        places |= {name: place.inside(f"pairs.{name}") for name in own}
        drafter_places |= {name: place.inside(f"drafters.{name}") for name in trained}
    for pair in pairs.values():
        refuse_unknown_models(places[pair.name], pair, models)
    for drafter in drafters.values():
        refuse_unknown_target(drafter_places[drafter.name], drafter, models)
        if drafter.name in models or drafter.name in pairs:
            raise drafter_places[drafter.name].error("", "has the name of a model or a pair")
    return Catalog(with_mirrors(models, load_mirrors()), pairs, drafters)


def users_models() -> Path:
    """Where the user's own models and pairs stand."""
    return config_dir() / "models.toml"
