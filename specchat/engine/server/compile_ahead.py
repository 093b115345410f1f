"""Compiles the C of the package while files are fetched and read: done once, it takes a core for some seconds."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress

from specchat.compiled.build import NativeUnavailable, NotOwnFile, Sources, compile_if_missing, is_compiled
from specchat.indexes.native_suffix_tree import suffix_sources
from specchat.models.cpu_kernels.build import kernel_sources

COMPILING = "compiling kernels, once"


class CompileAhead:
    """What is compiled in the background; code that needs a library before it is ready waits for it."""

    def __init__(self, wanted: Callable[[], list[Sources]] = lambda: [kernel_sources(), suffix_sources()]) -> None:
        """Begin with what is missing of `wanted`; what cannot be compiled is reported by those that load it."""
        self._thread: threading.Thread | None = None
        with suppress(NativeUnavailable):
            if missing := [sources for sources in wanted() if not is_compiled(sources)]:
                self._thread = threading.Thread(target=_compile, args=(missing,), name="compiling", daemon=True)
                self._thread.start()

    @property
    def doing(self) -> str:
        """What is being done, in words; empty once it is done."""
        return COMPILING if self._thread is not None and self._thread.is_alive() else ""


def _compile(missing: list[Sources]) -> None:
    with suppress(NativeUnavailable, NotOwnFile, OSError):
        for sources in missing:
            compile_if_missing(sources)
