"""Where specchat keeps things, and what models.toml, config.toml and mirrors.toml say, as frozen values."""

from specchat.config.catalog import load_catalog, load_mirrors, users_models
from specchat.config.directories import (
    cache_dir,
    config_dir,
    data_dir,
    own_drafters_dir,
    private_dir,
    state_dir,
)
from specchat.config.user_config import (
    AppOptions,
    settings_of,
    shipped_settings,
    starting_pair,
    user_app,
    user_keys,
    user_settings,
    users_config,
)
from specchat.config.values import (
    Catalog,
    DrafterSpec,
    HubSource,
    IndexSource,
    ModelFile,
    ModelSpec,
    PairSpec,
    PathSource,
    WeightsSpec,
)

__all__ = [
    "AppOptions",
    "Catalog",
    "DrafterSpec",
    "HubSource",
    "IndexSource",
    "ModelFile",
    "ModelSpec",
    "PairSpec",
    "PathSource",
    "WeightsSpec",
    "cache_dir",
    "config_dir",
    "data_dir",
    "load_catalog",
    "load_mirrors",
    "own_drafters_dir",
    "private_dir",
    "settings_of",
    "shipped_settings",
    "starting_pair",
    "state_dir",
    "user_app",
    "user_keys",
    "user_settings",
    "users_config",
    "users_models",
]
