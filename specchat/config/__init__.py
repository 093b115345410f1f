"""Where specchat keeps things, and what models.toml, config.toml and mirrors.toml say, as frozen values."""

from specchat.config.catalog import load_catalog as load_catalog
from specchat.config.catalog import load_mirrors as load_mirrors
from specchat.config.catalog import users_models as users_models
from specchat.config.directories import cache_dir as cache_dir
from specchat.config.directories import config_dir as config_dir
from specchat.config.directories import data_dir as data_dir
from specchat.config.directories import own_drafters_dir as own_drafters_dir
from specchat.config.directories import private_dir as private_dir
from specchat.config.directories import state_dir as state_dir
from specchat.config.user_config import AppOptions as AppOptions
from specchat.config.user_config import settings_of as settings_of
from specchat.config.user_config import shipped_settings as shipped_settings
from specchat.config.user_config import starting_pair as starting_pair
from specchat.config.user_config import user_app as user_app
from specchat.config.user_config import user_keys as user_keys
from specchat.config.user_config import user_settings as user_settings
from specchat.config.user_config import users_config as users_config
from specchat.config.values import Catalog as Catalog
from specchat.config.values import DrafterSpec as DrafterSpec
from specchat.config.values import HubSource as HubSource
from specchat.config.values import IndexSource as IndexSource
from specchat.config.values import ModelFile as ModelFile
from specchat.config.values import ModelSpec as ModelSpec
from specchat.config.values import PairSpec as PairSpec
from specchat.config.values import PathSource as PathSource
from specchat.config.values import WeightsSpec as WeightsSpec
