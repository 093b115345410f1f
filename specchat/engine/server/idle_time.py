"""What is done for a loaded pair while no command waits: passes are timed, then drafters work; and what they keep."""

from __future__ import annotations

from collections.abc import Callable

from specchat.config import load_catalog
from specchat.decoding.conversation import Conversation
from specchat.drafters.parts import PairResources
from specchat.engine.server.background_priority import background_priority
from specchat.engine.server.idle_measuring import IdleMeasuring
from specchat.engine.server.kept_drafters import KeptDrafters
from specchat.engine.server.loaded_pair import LoadedPair
from specchat.engine.server.profiles import ProfileStore
from specchat.models.hub import checksum


class IdleTime:
    """The measurements of one loaded pair, and its drafters that learn.

    Args:
        say: tells the user what a drafter could not keep.
    """

    def __init__(self, store: ProfileStore, pair: LoadedPair, say: Callable[[str], None]) -> None:
        self._store = store
        self.measuring = IdleMeasuring(store, pair)
        target = pair.target.name  # not the pair: its draft models may go
        self.kept = KeptDrafters(lambda: checksum.weights_sha256(load_catalog().model(target)), say)

    @property
    def due(self) -> bool:
        """Whether there is anything to do."""
        return self.measuring.due or self.kept.due

    def work(self, conversation: Conversation, interrupted: Callable[[], bool]) -> None:
        """Do what is due, until a command arrives."""
        if self.measuring.due:
            self.measuring.measure(conversation, interrupted)
        else:
            with background_priority():
                self.kept.work(interrupted)

    def measure_with(self, pair: LoadedPair) -> None:
        """Measure the pair as it is now, where it was not measured so before."""
        self.measuring = IdleMeasuring(self._store, pair)

    def resources(self, pair: LoadedPair) -> PairResources:
        """What the pair's drafters may be made from; those that learn are kept."""
        return pair.resources.keeping(self.kept.keep)
