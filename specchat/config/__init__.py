"""Where specchat keeps things, and what models.toml, config.toml and mirrors.toml say, as frozen values."""

from specchat.config.catalog import load_catalog, users_models
from specchat.config.directories import (
    cache_dir,
    config_dir,
    data_dir,
    own_drafters_dir,
    private_dir,
    shipped_drafters_dir,
    shipped_file,
    state_dir,
)
from specchat.config.mirrors import load_mirrors
from specchat.config.setting_layers import flat, settings_of, shipped_settings, starting_pair
from specchat.config.tables import PACKAGE
from specchat.config.user_config import AppOptions, user_app, user_keys, user_settings, users_config
from specchat.config.values import (
    COMPANION_SUFFIXES,
    WEIGHT_SUFFIXES,
    Catalog,
    DrafterSpec,
    HubSource,
    IndexSource,
    Mirror,
    ModelFile,
    ModelSpec,
    PairSpec,
    PathSource,
    ScriptedSource,
    Source,
    WeightsSpec,
)

__all__ = [
    "COMPANION_SUFFIXES",
    "PACKAGE",
    "WEIGHT_SUFFIXES",
    "AppOptions",
    "Catalog",
    "DrafterSpec",
    "HubSource",
    "IndexSource",
    "Mirror",
    "ModelFile",
    "ModelSpec",
    "PairSpec",
    "PathSource",
    "ScriptedSource",
    "Source",
    "WeightsSpec",
    "cache_dir",
    "config_dir",
    "data_dir",
    "flat",
    "load_catalog",
    "load_mirrors",
    "own_drafters_dir",
    "private_dir",
    "settings_of",
    "shipped_drafters_dir",
    "shipped_file",
    "shipped_settings",
    "starting_pair",
    "state_dir",
    "user_app",
    "user_keys",
    "user_settings",
    "users_config",
    "users_models",
]
