"""What to talk to: the pairs there are, fetching one in the background, loading it, forgetting one's own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from specchat.config import user_settings
from specchat.config.own_pairs import forget_pair
from specchat.config.saving import start_with
from specchat.engine.protocol.codec import decode_event
from specchat.engine.protocol.events import Loading
from specchat.errors import ConfigError, SpecchatError, UsageError, nearest
from specchat.settings import Settings
from specchat.tui.ports import KeyNames, Notify, Redraw, RunInBackground
from specchat.tui.state.pair_info import PairInfo
from specchat.tui.state.session import Chat
from specchat.tui.system.own_process import OwnProcess, own_command
from specchat.tui.text import numbers

Pairs = Sequence[PairInfo] | Callable[[], list[PairInfo]]
Judge = Callable[[PairInfo], PairInfo]


class PairLibrary:
    """The pairs of this machine. `here` is False where the engine runs elsewhere and fetches by itself."""

    def __init__(
        self,
        chat: Chat,
        pairs: Pairs,
        judge: Judge | None,
        *,
        here: bool,
        notify: Notify,
        redraw: Redraw,
        load: Callable[[dict[str, Any]], Awaitable[None]],
        run: RunInBackground,
        key_of: KeyNames,
    ) -> None:
        self.here = here
        self.fetching: dict[str, Loading | None] = {}  # progress of what is being fetched, by pair
        self.failed: dict[str, str] = {}  # why fetching a pair did not work
        self.command: Callable[..., list[str]] = own_command
        self._chat = chat
        self._notify, self._redraw, self._load, self._run, self._key_of = notify, redraw, load, run, key_of
        self._pairs = pairs
        self._judge = judge
        self._errands: dict[str, OwnProcess] = {}
        self._watch: Callable[[], None] = lambda: None

    def known(self) -> list[PairInfo]:
        """The pairs with what is here of them now."""
        return self._pairs() if callable(self._pairs) else list(self._pairs)

    async def judged(self, pair: PairInfo) -> PairInfo:
        """The same pair with whether it would work here; read on a thread of its own."""
        if self._judge is None:
            return pair
        try:
            return await asyncio.to_thread(self._judge, pair)
        except SpecchatError:  # taken out of the catalog meanwhile, or a file that broke: loading will say so
            return pair

    async def choose(self, name: str) -> None:
        """Load this pair, or fetch it first while the chat goes on.

        Raises:
            UsageError: no pair is called so.
        """
        pairs = {pair.name: pair for pair in self.known()}
        if pairs and name not in pairs:
            raise UsageError(f"no pair is called {name!r}{nearest(name, pairs)}")
        if name in pairs and self.waits(pairs[name]):
            self.fetch(name)
            self._notify(f"fetching {name}; the chat goes on meanwhile")
        else:
            self._chat.fetched = ""
            await self._load({"pair": name})

    def waits(self, pair: PairInfo) -> bool:
        """Whether the pair is fetched in the background first: another is in use, and the chat goes on with it."""
        return pair.state in ("partial", "missing") and self.here and self._chat.engine.ready is not None

    def fetch(self, name: str) -> None:
        """Fetch the weights of this pair in the background; what was fetched before is not fetched again."""
        if name not in self.fetching:
            self.fetching[name] = None
            self.failed.pop(name, None)
            self._notify("")
            self._run(self._fetch(name))
            self._look()

    def call_off(self, name: str) -> bool:
        """Stop fetching this pair; the next time goes on from there. False if it was not being fetched."""
        if errand := self._errands.get(name):
            errand.call_off()
        return errand is not None

    async def close(self) -> None:
        """Stop everything that is under way."""
        await asyncio.gather(*(errand.end() for errand in self._errands.values()))

    def watch(self, told: Callable[[], None] | None) -> None:
        """Tell this one whenever something has changed; None: nobody."""
        self._watch = told or (lambda: None)

    def forget(self, name: str) -> str:
        """Take a pair of the user's own out of models.toml; what to say about it.

        Raises:
            UsageError: it is not the user's.
            ConfigError: the file cannot be changed.
        """
        models = [model for model in forget_pair(name) if model != name]
        return f"{name} is forgotten" + (f", and {', '.join(models)}" if models else "") + "; weights stay"

    @property
    def first(self) -> str:
        """The pair the app begins with; empty where that is another machine's business."""
        try:
            return str(user_settings().get("pair", Settings().pair)) if self.here else ""
        except ConfigError:  # said wherever the file is needed
            return ""

    def begin_with(self, name: str) -> str:
        """Begin with this pair from now on; what to say about it.

        Raises:
            ConfigError: the file cannot be changed.
        """
        if not self.here:
            return f"the engine runs elsewhere: use `specchat config set pair {name}` there"
        return f"specchat begins with {name} from now on ({start_with(name).file.name})"

    async def _fetch(self, name: str) -> None:
        errand = self._errands[name] = OwnProcess(
            self.command("models", "pull", name, "--output", "jsonl"), lambda line: self._heard(name, line)
        )
        self._look()
        try:
            done = await errand.run()
        finally:
            del self._errands[name], self.fetching[name]
        if done:
            self._chat.fetched = name
            key = self._key_of("pair")
            self._notify(f"{name} is here; {f'{key} or ' if key else ''}/pair {name} loads it", "good")
        elif errand.called_off:
            self._notify(f"stopped fetching {name}; the next time goes on from there")
        else:
            self.failed[name] = errand.last_words
            self._notify(f"{name} was not fetched: {errand.last_words}", "bad")
        self._look()

    def _heard(self, name: str, line: bytes) -> None:
        try:
            event = decode_event(line)
        except msgspec.DecodeError:  # a library that prints
            return
        if isinstance(event, Loading):
            self.fetching[name] = event
            self._look()

    def _look(self) -> None:
        self._chat.fetching = " · ".join(_short(name, event) for name, event in self.fetching.items())
        self._redraw()
        self._watch()


def _short(name: str, event: Loading | None) -> str:
    share = numbers.loading(event)[1] if event else None
    return f"⇣ {name}" + ("" if share is None else f" {share:.0%}".replace("%", " %"))
