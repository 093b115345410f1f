"""The pairs of models: lists and finds them, downloads one in the background, loads one, removes a user's own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from specchat.config import starting_pair, user_settings, users_models
from specchat.config.file_reading import UNREADABLE
from specchat.config.settings_saving import forget_pair, start_with
from specchat.engine.protocol.codec import decode_event
from specchat.engine.protocol.events import Loading
from specchat.engine.protocol.text import visible
from specchat.errors import ConfigError, SpecchatError, UsageError, nearest
from specchat.tui.services.engine_session import EngineSession
from specchat.tui.services.terminal_app import TerminalApp
from specchat.tui.state.pair_list import Offer, PairInfo
from specchat.tui.system.processes import OwnProcess, in_daemon_thread, own_command
from specchat.tui.text import numbers


class _Findings(msgspec.Struct, frozen=True):
    """What the command writes; a pair whose `added` is empty was not added yet."""

    pairs: list[dict[str, Any]]

    def not_added(self) -> list[PairInfo]:
        shown = [{key: visible(v) if isinstance(v, str) else v for key, v in pair.items()} for pair in self.pairs]
        return [msgspec.convert({**pair, "state": "found"}, PairInfo) for pair in shown if not pair.get("added")]


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
                self.pairs = msgspec.json.decode(b"".join(lines), type=_Findings).not_added()
            except UNREADABLE:
                return

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


@dataclass(frozen=True, kw_only=True)
class PairSources:
    """Where pairs come from.

    Args:
        pairs, judge, sizes: the pairs there are; what their files say of one; what the hub says it has to fetch.
        finds_models: whether models that other programs keep on this machine are looked for.
        better: what is offered instead of a small model; the hub may be asked. None offers nothing.
        engine_here: whether the engine reads this machine's files.
    """

    pairs: Sequence[PairInfo] | Callable[[], list[PairInfo]] = ()
    judge: Callable[[PairInfo], PairInfo] | None = None
    sizes: Callable[[PairInfo], PairInfo] | None = None
    finds_models: bool = False
    better: Callable[[str], Offer | None] | None = None
    engine_here: bool = True


_POLL_S = 0.1


class PairLibrary:
    """The pairs of this machine. `here` is False where the engine runs elsewhere and fetches by itself."""

    def __init__(self, app: TerminalApp, session: EngineSession, sources: PairSources) -> None:
        self.here = sources.engine_here
        self.found = FoundPairs(lambda *words: self.command(*words))
        self._sources, self._better = sources, sources.better
        self._load_next = ""  # the pair that was asked for last and is loaded once it is here
        self.fetching: dict[str, Loading | None] = {}  # the progress of downloads, by pair
        self.failed: dict[str, str] = {}  # why fetching a pair did not work
        self.command: Callable[..., list[str]] = own_command
        self._app, self._chat, self._session = app, app.chat, session
        self._change_next: tuple[dict[str, Any], dict[str, Any]] = ({}, {})  # settings that wait, and those before
        self.processes: dict[str, OwnProcess] = {}
        self._listener: Callable[[], None] = lambda: None

    def known(self) -> list[PairInfo]:
        """All pairs with the current state of their files, then those found that were not added."""
        known = self._sources.pairs
        pairs = known() if callable(known) else list(known)
        names = {pair.name for pair in pairs}
        return [*pairs, *(pair for pair in self.found.pairs if pair.name not in names)]

    async def find(self) -> list[PairInfo]:
        """Search for models of other programs; what was found and not added yet."""
        if self._sources.finds_models and self.here:
            await self.found.search()
        return self.found.pairs

    async def offer_found(self) -> None:
        """Say on the welcome page what was found, where the user has configured nothing yet."""
        with suppress(ConfigError):  # reported wherever the file is needed
            if users_models().exists() or "pair" in user_settings():
                return
        if found := await self.find():
            more = f" and {len(found) - 1} more" if len(found) > 1 else ""
            self._chat.background.found = f"on this machine already: {found[0].summary}{more}"
            self._app.redraw()

    async def offer_better(self, pair: str) -> None:
        """Say on the welcome page that this pair's model is small, if it is, and what would be better."""
        better, self._better = self._better, None  # once
        if better is not None:
            with suppress(SpecchatError):
                self._chat.background.offer = await in_daemon_thread(lambda: better(pair))
                self._app.redraw()

    async def judged(self, pair: PairInfo) -> PairInfo:
        if self._sources.judge is None or pair.state == "found":
            return pair
        try:
            return await asyncio.to_thread(self._sources.judge, pair)
        except SpecchatError:  # removed, or a broken file: loading reports it
            return pair

    async def sized(self, pair: PairInfo) -> PairInfo | None:
        """The pair with what it has to fetch, as its hub says; None where the hub does not answer."""
        if self._sources.sizes is None or pair.download_bytes is not None:
            return pair
        try:
            return await asyncio.to_thread(self._sources.sizes, pair)
        except SpecchatError:
            return None

    async def choose(self, name: str) -> None:
        """Load this pair; one that was found is added first, one that is not here is downloaded first.

        Raises:
            UsageError: no pair has this name, or it cannot be added.
        """
        pairs = {pair.name: pair for pair in self.known()}
        if pairs and name not in pairs:
            raise UsageError(f"no pair is called {name!r}{nearest(name, pairs)}")
        if name in pairs and pairs[name].state == "found":
            self._app.say(f"adding {name} …")
            await self.found.add(name)
            self._chat.background.found = ""
        if name in pairs and self.fetches_first(pairs[name]):
            self.fetch(name)
            self._app.say(f"fetching {name}; the chat goes on meanwhile")
        else:
            self._chat.background.fetched = self._load_next = ""
            await self._session.load({"pair": name})

    def fetches_first(self, pair: PairInfo) -> bool:
        """Whether the pair is downloaded in the background first, because another one is in use."""
        return pair.state in ("partial", "missing") and self.here and self._chat.engine.ready is not None

    def fetch(self, name: str) -> None:
        """Fetch the weights of this pair in the background, then load it, unless another is asked for meanwhile."""
        self._load_next = name
        if name not in self.fetching:
            self.failed.pop(name, None)
            self._app.say("")
            self._begin(name, self._fetch_pair(name))

    def fetch_drafts(self, models: Mapping[str, int], change: dict[str, Any]) -> str:
        """Fetch draft models of the pair in use in the background, then change the settings if they are still the same.

        Args:
            models: their names, with the bytes to fetch, 0 where that is not known.

        Returns:
            What is being done, in one line.
        """
        engine = self._chat.engine
        self._change_next = change, {name: engine.settings.get(name) for name in change}
        if engine.pair not in self.fetching:
            self._begin(engine.pair, self._fetch_drafts(engine.pair, list(models)))
        size = numbers.size(sum(models.values())) if all(models.values()) else ""
        what = f"{' + '.join(models)}{size and f' ({size})'}"
        return f"fetching {what}; {engine.settings.get('drafter')} goes on meanwhile"

    def _begin(self, name: str, fetching: Coroutine[Any, Any, None]) -> None:
        self.fetching[name] = None
        self._app.run_in_background(fetching)
        self._progress_changed()

    def cancel(self, name: str) -> bool:
        """Stop the download of this pair; the next one resumes it. False if there was none."""
        if process := self.processes.get(name):
            process.cancel()
        return process is not None

    async def close(self) -> None:
        await asyncio.gather(self.found.close(), *(process.end() for process in self.processes.values()))

    def set_listener(self, listener: Callable[[], None] | None) -> None:
        """It is called whenever downloads have progressed."""
        self._listener = listener or (lambda: None)

    def forget(self, name: str) -> str:
        """Remove a pair of the user's own from models.toml; returns the remark about it.

        Raises:
            UsageError: it is not the user's.
            ConfigError: the file cannot be changed.
        """
        models = [model for model in forget_pair(name) if model != name]
        return f"{name} is forgotten" + (f", and {', '.join(models)}" if models else "") + "; weights stay"

    @property
    def start_pair(self) -> str:
        """The pair that is loaded at the start; empty where another machine decides it."""
        try:
            return starting_pair({}) if self.here else ""
        except ConfigError:  # reported wherever the file is needed
            return ""

    def set_start_pair(self, name: str) -> str:
        """Load this pair at every start; returns the remark about it.

        Raises:
            ConfigError: the file cannot be changed.
        """
        if not self.here:
            return f"the engine runs elsewhere: use `specchat config set pair {name}` there"
        return f"specchat begins with {name} from now on ({start_with(name).file.name})"

    async def _fetch_pair(self, name: str) -> None:
        missed = await self._pull(name, [name])
        if missed is None:
            self._chat.background.fetched = name
            self._app.run_in_background(self._load_fetched(name))
        elif missed:
            self.failed[name] = missed
            self._app.say(f"{name} was not fetched: {missed}", "bad")
        self._progress_changed()

    async def _fetch_drafts(self, pair: str, models: Sequence[str]) -> None:
        missed = await self._pull(pair, models)
        self._progress_changed()
        if missed:
            drafter = self._chat.engine.settings.get("drafter")
            self._app.say("")
            await self._app.note(f"{models[0]} was not fetched, and drafter {drafter} stays: {missed}", "bad")
        if missed is not None:
            return
        while self._chat.engine.phase == "loading" or self._chat.background.racing:
            await asyncio.sleep(_POLL_S)
        change, before = self._change_next
        settings = self._chat.engine.settings
        if self._chat.engine.pair == pair and all(settings.get(name) == value for name, value in before.items()):
            self._session.change_all(change)
        else:
            self._app.say(f"{' + '.join(models)} is here", "good")

    async def _pull(self, pair: str, names: Sequence[str]) -> str | None:
        """Fetch a pair, or models of it, one by one; None once they are here, else why not, empty if stopped."""
        try:
            for name in names:
                command = self.command("models", "pull", name, "--output", "jsonl")
                process = self.processes[pair] = OwnProcess(command, partial(self._on_line, pair))
                self._progress_changed()
                if not await process.run():
                    if not process.cancelled:
                        return process.last_words
                    self._app.say(f"stopped fetching {name}; the next time goes on from there")
                    return ""
        finally:
            self.processes.pop(pair, None)
            del self.fetching[pair]
        return None

    async def _load_fetched(self, name: str) -> None:
        """Load what was fetched once no reply is being written, if it is still what was asked for last."""
        if name != self._load_next:
            key = self._app.key_of("pair")
            self._app.say(f"{name} is here; {f'{key} or ' if key else ''}/pair {name} loads it", "good")
            return
        if self._busy:
            self._app.say(f"{name} is here; it is loaded when this is over", "good")
        while self._busy and name == self._load_next:
            await asyncio.sleep(_POLL_S)
        if name == self._load_next:
            self._chat.background.fetched = self._load_next = ""
            await self._session.load({"pair": name})

    @property
    def _busy(self) -> bool:
        return self._chat.running is not None or self._chat.engine.phase == "loading" or self._chat.background.racing

    def _on_line(self, name: str, line: bytes) -> None:
        try:
            event = decode_event(line)
        except msgspec.DecodeError:  # a library that prints
            return
        if isinstance(event, Loading):
            self.fetching[name] = event
            self._progress_changed()

    def _progress_changed(self) -> None:
        self._chat.background.fetching = " · ".join(_short(name, event) for name, event in self.fetching.items())
        self._app.redraw()
        self._listener()


def _short(name: str, event: Loading | None) -> str:
    share = numbers.loading(event)[1] if event else None
    return f"⇣ {name}" + ("" if share is None else f" {numbers.percent(share)}")
