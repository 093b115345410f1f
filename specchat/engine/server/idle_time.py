"""Work for a loaded pair while no command waits: timing passes for the controllers, then the drafters' own.

Measured times, and what controllers have learnt, are kept in small files: per pair, device, precision and threads,
until they are old or no longer true.
"""

from __future__ import annotations

import hashlib
import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from specchat import __version__
from specchat.config import cache_dir, load_catalog
from specchat.config.file_reading import UNREADABLE
from specchat.config.kept_files import read_small, write_whole
from specchat.core.costs import Costs
from specchat.core.seams import Model, TargetElsewhere
from specchat.decoding.combinations import trained_in_use
from specchat.decoding.conversation import Conversation
from specchat.decoding.kept_parts import ControllerCache, made_with
from specchat.decoding.profiling import measure_costs
from specchat.drafters.parts import PairResources
from specchat.engine.server.kept_drafters import KeptDrafters
from specchat.engine.server.kept_prompts import KeptPrompts
from specchat.engine.server.loaded_pair import LoadedPair
from specchat.engine.server.measured_passes import MeasuredPasses, ProfileStore
from specchat.models.hub import checksum
from specchat.models.machine import processor_name
from specchat.settings import Settings

_ATTEMPTS = 3
"""Tries for each loaded pair. A machine too busy for all of them runs without a measurement."""

_log = logging.getLogger(__name__)


class IdleMeasuring:
    """Costs of one pair's passes: from the store, or measured and stored there."""

    def __init__(self, store: ProfileStore, pair: LoadedPair) -> None:
        self._store = store
        self._pair = pair
        self._attempts = _ATTEMPTS
        self.profile: MeasuredPasses | None = store.get(pair.key, processor_name(pair.device))

    @property
    def costs(self) -> Costs | None:
        return None if self.profile is None else self.profile.costs

    @property
    def due(self) -> bool:
        """Whether the costs are unknown or were measured too long ago, and tries are left."""
        return self._attempts > 0 and (self.profile is None or self.profile.old)

    def measure(self, conversation: Conversation, interrupted: Callable[[], bool]) -> None:
        """Measure, store and use the costs. An interrupted measurement is not counted; a failed one is the last."""
        draft: Model | None = self._pair.draft.model if self._pair.draft else None
        try:
            costs = measure_costs(conversation.target, draft, interrupted, fits=self._pair.room_for_rows)
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


class IdleTime:
    """The measurements of one loaded pair, and its drafters that learn; `say` tells the user what one cannot keep."""

    def __init__(self, store: ProfileStore, pair: LoadedPair, say: Callable[[str], None], prompts: KeptPrompts) -> None:
        self._store = store
        self.prompts = prompts
        self.measuring = IdleMeasuring(store, pair)
        target = pair.target.name  # not the pair: its draft models may go
        model = pair.target.model
        elsewhere = model.weights_sha256 if isinstance(model, TargetElsewhere) else None
        self.kept = KeptDrafters(elsewhere or (lambda: checksum.weights_sha256(load_catalog().model(target))), say)
        file = cache_dir() / "controllers.json"
        self.accounts = KeptAccounts(file, pair, lambda: checksum.known_sha256(load_catalog().model(target)))

    @property
    def due(self) -> bool:
        """Whether there is anything to do."""
        return self.prompts.due or self.measuring.due or self.accounts.due or self.kept.due

    def work(self, conversation: Conversation, interrupted: Callable[[], bool]) -> None:
        """Do what is due, until a command arrives."""
        if self.prompts.due:
            with background_priority():
                self.prompts.save(interrupted)
        elif self.measuring.due:
            self.measuring.measure(conversation, interrupted)
        elif self.accounts.due:
            self.accounts.save(conversation.controllers)
        else:
            with background_priority():
                self.kept.work(interrupted)

    def measure_with(self, pair: LoadedPair) -> None:
        """Measure the pair as it is now, where it was not measured so before."""
        self.measuring = IdleMeasuring(self._store, pair)
        self.accounts.pair = pair

    def replied(self) -> None:
        self.accounts.due = True
        self.kept.replied()

    def resources(self, pair: LoadedPair) -> PairResources:
        """The pair's resources for its drafters; those drafters that learn are kept."""
        return pair.resources.keeping(self.kept.keep)


_CAN_GO_BACK = sys.platform == "linux"
"""A thread that raised its niceness cannot lower it again. Linux's batch policy can be left, and takes turns later."""


@contextmanager
def background_priority() -> Iterator[None]:
    """Run the block at a lower priority: this thread gets the processor after those of other programs."""
    if not _CAN_GO_BACK or os.sched_getscheduler(0) != os.SCHED_OTHER:
        yield
        return
    parameters = os.sched_param(0)
    os.sched_setscheduler(0, os.SCHED_BATCH, parameters)
    try:
        yield
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, parameters)


_MOST = 64
"""Accounts that are kept, of all pairs, processors and settings."""


class KeptAccounts:
    """One file of accounts, each under a checksum of all that it depends on: models, weights, processor, settings.

    An account of other weights or of another machine is never found, and is dropped once there are `_MOST` newer ones.

    Attributes:
        pair: whose controllers' accounts are kept; it may be replaced by one of the same target.
        due: whether there may be something new to write.
    """

    def __init__(self, file: Path, pair: LoadedPair, target_sha256: Callable[[], str | None]) -> None:
        """`target_sha256`: the checksum of the target's weights; None where it is not known yet."""
        self._file, self.pair, self._target_sha256 = file, pair, target_sha256
        self.due = False

    def saved(self, settings: Settings) -> bytes:
        """The kept state of a controller of such settings; empty where there is none."""
        key = self._key(settings)
        return bytes(self._all().get(key, b"")) if key else b""

    def save(self, controllers: ControllerCache) -> None:
        """Write what they have learnt, if the disk takes it."""
        self.due = False
        new = {key: msgspec.Raw(state) for settings, state in controllers.states() if (key := self._key(settings))}
        if not new:
            return
        others = [(key, state) for key, state in self._all().items() if key not in new]
        with suppress(OSError):
            write_whole(self._file, msgspec.json.encode(dict([*others, *new.items()][-_MOST:])))

    def _key(self, settings: Settings) -> str:
        """Empty where the weights' checksum is not known yet."""
        pair = self.pair
        if not (target := self._target_sha256()):
            return ""
        used = set(trained_in_use(settings, pair.trained))
        trained = sorted(one.sha256 for one in pair.trained.fitting if one.name in used)
        about = (__version__, processor_name(pair.device), pair.key, target, trained, made_with(settings))
        return hashlib.sha256(repr(about).encode()).hexdigest()

    def _all(self) -> dict[str, msgspec.Raw]:
        if not (data := read_small(self._file)):
            return {}
        try:
            return msgspec.json.decode(data, type=dict[str, msgspec.Raw])
        except UNREADABLE as error:
            _log.warning("%s is damaged and is removed, controllers learn anew: %s", self._file, error)
            with suppress(OSError):
                self._file.unlink()
            return {}
