"""Models that other programs keep on this machine, as pairs that can be added; a process of its own looks for them."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from specchat.config.file_reading import UNREADABLE
from specchat.engine.protocol.text import visible
from specchat.errors import UsageError
from specchat.tui.state.pair_list import PairInfo
from specchat.tui.system.processes import OwnProcess


class _Pair(msgspec.Struct, frozen=True):
    name: str
    target: str
    draft: str | None
    summary: str
    disk_bytes: int
    needed_bytes: int | None
    free_bytes: int | None
    added: str


class _Findings(msgspec.Struct, frozen=True):
    pairs: list[_Pair]


class FoundPairs:
    """What `specchat models find` says. `pairs` is empty until it was searched for."""

    def __init__(self, command: Callable[..., list[str]]) -> None:
        self.pairs: list[PairInfo] = []
        self._command = command
        self._process: OwnProcess | None = None

    async def search(self) -> None:
        """Search again; where that fails, nothing is found."""
        if self._process is not None:
            return
        lines: list[bytes] = []
        if await self._run(OwnProcess(self._command("models", "find", "--output", "json"), lines.append)):
            try:
                found = msgspec.json.decode(b"".join(lines), type=_Findings)
            except UNREADABLE:
                return
            self.pairs = [_pair_info(pair) for pair in found.pairs if not pair.added]

    async def add(self, name: str) -> None:
        """Add this pair to the user's models.toml.

        Raises:
            UsageError: it cannot be added, with the reason.
        """
        process = OwnProcess(self._command("models", "find", "--add", name))
        if not await self._run(process):
            raise UsageError(f"{name} was not added: {process.last_words}")
        self.pairs = [pair for pair in self.pairs if pair.name != name]

    async def close(self) -> None:
        if self._process is not None:
            await self._process.end()

    async def _run(self, process: OwnProcess) -> bool:
        self._process = process
        try:
            return await process.run()
        finally:
            self._process = None


def _pair_info(pair: _Pair) -> PairInfo:
    return PairInfo(
        name=visible(pair.name),
        target=visible(pair.target),
        draft=visible(pair.draft) if pair.draft else None,
        state="found",
        summary=visible(pair.summary),
        disk_bytes=pair.disk_bytes,
        needed_bytes=pair.needed_bytes,
        free_bytes=pair.free_bytes,
    )
