"""A pair ready to be measured: the settings in force, the models, the threads."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from specchat.config import load_catalog, settings_of, starting_pair
from specchat.engine.protocol.environment import engine_environment
from specchat.settings import GREEDY, Settings

if TYPE_CHECKING:
    from specchat.engine.server.loaded_pair import LoadedPair


def prepare_environment(threads: int = 0) -> None:
    """What an engine's environment says, before torch is first imported: waiting threads sleep."""
    os.environ.update(engine_environment(threads))


def settings_in_force(chosen: Mapping[str, Any], **fallback: Any) -> Settings:
    """What the pair starts with but greedy, then `fallback`, then what was asked for."""
    return settings_of(load_catalog().pair(starting_pair(chosen)), GREEDY, fallback, chosen)


def load_pair(
    settings: Settings, say: Callable[[str], None] = lambda what: None, others: Sequence[Settings] = ()
) -> LoadedPair:
    """The pair the settings name, with the draft models that they or `others` use; what is missing is fetched first."""
    from specchat.engine.protocol.events import Event, Loading
    from specchat.engine.protocol.stage_text import loading_text
    from specchat.engine.server.pair_loading import Loader

    def emit(event: Event) -> None:
        if isinstance(event, Loading):
            share = f" {100 * event.done // event.total} %" if event.total else ""
            say(f"{loading_text(event)}{share}")

    return Loader(load_catalog(), emit, lambda: False).load(settings, others)
