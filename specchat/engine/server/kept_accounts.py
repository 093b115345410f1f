"""What controllers have learnt about a pair, kept in a small file from one engine to the next."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from specchat import __version__
from specchat.config.file_reading import UNREADABLE
from specchat.config.kept_files import read_small, write_whole
from specchat.decoding.combinations import trained_in_use
from specchat.decoding.kept_parts import ControllerCache, made_with
from specchat.engine.server.loaded_pair import LoadedPair
from specchat.models.machine import processor_name
from specchat.settings import Settings

_MOST = 64
"""Accounts that are kept, of all pairs, processors and settings."""

_log = logging.getLogger(__name__)


class KeptAccounts:
    """One file of accounts, each under a checksum of all that it depends on: models, weights, processor, settings.

    An account of other weights or of another machine is never found, and is dropped once there are `_MOST` newer ones.

    Attributes:
        due: whether there may be something new to write.
    """

    def __init__(self, file: Path, pair: LoadedPair, target_sha256: Callable[[], str | None]) -> None:
        """`target_sha256`: the checksum of the target's weights; None where it is not known yet."""
        self._file, self._pair, self._target_sha256 = file, pair, target_sha256
        self.due = False

    def use(self, pair: LoadedPair) -> None:
        """Keep accounts of this pair from now on: the same target."""
        self._pair = pair

    def saved(self, settings: Settings) -> bytes:
        """What was kept of a controller of such settings; empty where that is nothing."""
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
        pair = self._pair
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
