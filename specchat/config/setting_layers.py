"""Which settings a pair starts with: what the user wrote wins, and the narrower of two wins."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specchat.config.user_config import user_settings
from specchat.config.values import PairSpec
from specchat.settings import Settings


def starting_pair(wanted: Mapping[str, Any]) -> str:
    """The pair that is loaded where this is wanted: the one it names, else the user's, else the shipped default.

    Raises:
        ConfigError: config.toml says something we cannot accept.
    """
    pair = wanted.get("pair")
    return str(user_settings().get("pair", Settings().pair) if pair is None else pair)


def shipped_settings(pair: PairSpec) -> Settings:
    """What the pair would start with if the user had written nothing."""
    return Settings().but({**pair.defaults, "pair": pair.name})


def settings_of(pair: PairSpec, *wanted: Mapping[str, Any]) -> Settings:
    """What the pair starts with: as shipped, the user's for every pair, the user's for this one, then what is wanted.

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
