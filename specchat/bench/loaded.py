"""A pair ready to be measured: the settings in force, the models, the threads."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from specchat.config import load_catalog, user_settings
from specchat.engine.client import engine_environment
from specchat.settings import Settings

if TYPE_CHECKING:
    from specchat.engine.pairs import LoadedPair


def prepare_environment(threads: int = 0) -> None:
    """What an engine's environment says, before torch is first imported: waiting threads sleep."""
    os.environ.update(engine_environment(threads))


def settings_in_force(chosen: Mapping[str, Any], **fallback: Any) -> Settings:
    """The pair's own defaults, the user's config.toml on top, then `fallback`, then what was asked for."""
    own = user_settings()
    name = chosen.get("pair") or own.get("pair") or Settings().pair
    pair = load_catalog().pair(name)
    return Settings().but({**pair.defaults, **own, **fallback, **chosen, "pair": name})


def load_pair(settings: Settings, say: Callable[[str], None] = lambda what: None) -> LoadedPair:
    """The pair the settings name, fetched first where it is missing; sets torch's number of threads."""
    import torch

    from specchat.engine.events import Event, Loading
    from specchat.engine.pairs import Loader
    from specchat.models.machine import default_threads

    torch.set_num_threads(settings.threads or default_threads())

    def emit(event: Event) -> None:
        if isinstance(event, Loading):
            share = f" {100 * event.done // event.total} %" if event.total else ""
            say(f"{event.stage} {event.item}{share}")

    return Loader(load_catalog(), emit, lambda: False).load(settings)
