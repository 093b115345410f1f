"""Times passes of the loaded pair while the engine has nothing else to do."""

from __future__ import annotations

import logging
from collections.abc import Callable

from specchat.core.seams import Model
from specchat.decoding.conversation import Conversation
from specchat.decoding.profiling import measure_costs
from specchat.engine.server.loaded_pair import LoadedPair
from specchat.engine.server.profiles import Entry, ProfileStore
from specchat.models.machine import processor_name

_ATTEMPTS = 3
"""Tries for each loaded pair. A machine too busy for all of them runs without a measurement."""

_log = logging.getLogger(__name__)


class IdleMeasuring:
    """What passes of one pair cost: from the store, or measured and stored there."""

    def __init__(self, store: ProfileStore, pair: LoadedPair) -> None:
        self._store = store
        self._pair = pair
        self._attempts = _ATTEMPTS
        self.profile: Entry | None = store.get(pair.key, processor_name(pair.device))

    @property
    def due(self) -> bool:
        """Whether the costs are unknown or were measured too long ago, and tries are left."""
        return self._attempts > 0 and (self.profile is None or self.profile.old)

    def measure(self, conversation: Conversation, interrupted: Callable[[], bool]) -> None:
        """Measure, store and use the costs. An interrupted measurement is not counted; a failed one is the last."""
        draft: Model | None = self._pair.draft.model if self._pair.draft else None
        try:
            costs = measure_costs(conversation.target, draft, interrupted)
        except Exception:
            _log.exception("while measuring")
            self._attempts = 0
            return
        if costs is None:
            return
        self._attempts -= 1
        if costs.plausible:
            self.profile = self._store.put(self._pair.key, processor_name(self._pair.device), costs)
            conversation.learn_costs(costs)
