"""Progress of loading a pair: how long reading it took the last time, and the C that is compiled meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from specchat.compiled.build import NativeUnavailable, NotOwnFile, Sources, compile_if_missing, is_compiled
from specchat.config import ModelSpec
from specchat.config.kept_files import read_json, write_whole
from specchat.engine.protocol.events import Event, Loading
from specchat.indexes.native_suffix_tree import suffix_sources
from specchat.models.cpu_kernels.build import kernel_sources
from specchat.settings import Settings

_MOST = 200
_LONGEST_S = 3600.0


@dataclass(frozen=True)
class LoadTimes:
    """A small JSON file. Whatever cannot be read counts as never loaded."""

    file: Path

    def expected_s(self, key: str) -> float | None:
        """How long it took the last time; None if that is not known."""
        seconds = self._all().get(key)
        return seconds if seconds is not None and 0 < seconds < _LONGEST_S else None

    def remember(self, key: str, seconds: float) -> None:
        """Keep this for the next time, if it can be written."""
        times = self._all()
        times.pop(key, None)
        kept = dict([*times.items(), (key, round(seconds, 3))][-_MOST:])
        with suppress(OSError):
            write_whole(self.file, msgspec.json.encode(kept))

    def _all(self) -> dict[str, float]:
        return read_json(self.file, dict[str, float]) or {}


@dataclass
class ReadingProgress:
    """Says what is being read and done `beside` that, and, where it is known, how far that is in time."""

    emit: Callable[[Event], None]
    times: LoadTimes | None
    key: str
    beside: Callable[[], str] = str
    began_s: float = field(default_factory=time.perf_counter)

    def say(self, item: str) -> None:
        item = " · ".join(filter(None, (item, self.beside())))
        expected = self.times.expected_s(self.key) if self.times else None
        if expected is None:
            self.emit(Loading(stage="read", item=item, unit="steps"))
        else:
            self.emit(Loading("read", item, self._passed_ms, max(1, round(1000 * expected)), unit="ms"))

    def ended(self) -> None:
        if self.times is not None:
            self.times.remember(self.key, self._passed_ms / 1000)

    @property
    def _passed_ms(self) -> int:
        return round(1000 * (time.perf_counter() - self.began_s))


def load_key(settings: Settings, models: Iterable[ModelSpec]) -> str:
    """The key of a loading time: models, device, number format, kernels and backend."""
    names = "+".join(model.name for model in models)
    return "|".join((names, settings.device, settings.dtype, settings.kernels, settings.backend))


COMPILING = "compiling kernels, once"


class CompileAhead:
    """Compilation in the background; code that needs a library before it is ready waits for it."""

    def __init__(self, wanted: Callable[[], list[Sources]] = lambda: [kernel_sources(), suffix_sources()]) -> None:
        """Begin with what is missing of `wanted`; what cannot be compiled is reported by those that load it."""
        self._thread: threading.Thread | None = None
        with suppress(NativeUnavailable):
            if missing := [sources for sources in wanted() if not is_compiled(sources)]:
                self._thread = threading.Thread(target=_compile, args=(missing,), name="compiling", daemon=True)
                self._thread.start()

    @property
    def doing(self) -> str:
        """The work in words; empty once it is done."""
        return COMPILING if self._thread is not None and self._thread.is_alive() else ""


def _compile(missing: list[Sources]) -> None:
    with suppress(NativeUnavailable, NotOwnFile, OSError):
        for sources in missing:
            compile_if_missing(sources)
