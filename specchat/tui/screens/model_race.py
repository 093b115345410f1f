"""The screen of a race of two models: the chat's, and one that is loaded beside it on an engine of its own."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from specchat.engine.client.client import Link
from specchat.engine.client.model_race import Addressed, ModelRace
from specchat.engine.client.race import RACE_DEFAULTS, Side
from specchat.engine.protocol.commands import Message
from specchat.engine.protocol.events import Event
from specchat.errors import SpecchatError, UsageError, cut, meant
from specchat.settings import SPECULATION
from specchat.tui.screens.race import RaceScreen, changes, question, require_engine
from specchat.tui.services.context import AppServices
from specchat.tui.state.race_lines import column_title, model_head_lines
from specchat.tui.state.races import Playback
from specchat.tui.text import numbers
from specchat.tui.text.cells import ScreenLine


def split_pair(context: AppServices, words: str) -> tuple[str, str]:
    """The pair that a race is against, by its name or its target's, empty for plain decoding, and the question.

    Raises:
        UsageError: one word that is nearly such a name.
    """
    first, _, rest = words.partition(" ")
    known = context.pairs.known()
    names = {pair.target.lower(): pair.name for pair in reversed(known)} | {pair.name: pair.name for pair in known}
    if pair := names.get(first) or names.get(first.lower()):
        return pair, rest.strip()
    if words and not rest and (near := meant(first, names)):
        raise UsageError(f"no pair is called {cut(first, 40)!r}{near}")
    return "", words


async def race_models(context: AppServices, name: str, prompt: str) -> ModelRaceScreen:
    """The screen of a race against this pair.

    Raises:
        UsageError: the engine is not free, there is no question, or the pair cannot be used beside the one in use.
    """
    require_engine(context)
    question(context.chat, prompt)
    pair = await context.pairs.judged(next(pair for pair in context.pairs.known() if pair.name == name))
    in_use = context.chat.engine.pair
    if pair.state == "found":
        raise UsageError(f"{name} is not added yet; /pair {name} adds and loads it")
    if pair.refusal:
        raise UsageError(pair.refusal)
    if pair.short_of_memory():
        needed, free = numbers.size(pair.needed_bytes or 0), numbers.size(pair.free_bytes or 0)
        raise UsageError(f"{name} does not fit beside {in_use}: it takes about {needed} of memory, and {free} are free")
    return ModelRaceScreen(context, name, prompt)


class ModelRaceScreen(RaceScreen):
    """Starts the second engine, which ends with the screen; the chat's own stays as it is."""

    with_tree = False
    _race: ModelRace

    def __init__(self, context: AppServices, name: str, prompt: str) -> None:
        self._against = name
        self._link: Link | None = None
        self._race_closed = False
        super().__init__(context, prompt)

    def refuse_settings(self, settings: Mapping[str, Any]) -> None:
        """Without guesses two models can race, too."""

    def head(self, width: int) -> list[ScreenLine]:
        return model_head_lines(self._race, self.about[2], width)

    def title_of(self, side: Side) -> str:
        return column_title(self._race, side)

    def on_mount(self) -> None:
        self.context.app.run_in_background(self._connect())

    async def _connect(self) -> None:
        try:
            self._link = await self.context.session.start_beside(self.context.setup.second_engine)
        except SpecchatError as error:
            self._race.phase, self._race.problem = "failed", str(error)
            self.show()
            return
        if self._race_closed:
            self._close_link()
        else:
            self._send(self._race.begin())

    def take(self, events: Sequence[Event]) -> None:
        heard: list[tuple[Side, Event]] = [("own", event) for event in events]
        heard += [("other", event) for event in (self._link.drain() if self._link is not None else [])]
        for side, event in heard:
            self._send(self._race.hear(side, event))
        if heard:
            self.show()

    def stop_run(self) -> bool:
        commands = self._race.stop()
        self._send(commands)
        return bool(commands)

    def on_unmount(self) -> None:
        self._race_closed = True
        self._close_link()

    def _close_link(self) -> None:
        """End the second engine without waiting for it, also where the app ends at once."""
        if self._link is not None:
            threading.Thread(target=self._link.close, name="second-engine", daemon=True).start()
            self._link = None

    def _begin(self, messages: Sequence[Message], seed: int) -> None:
        """Prepare a race that begins with loading the other model, once there is an engine for it."""
        engine, own = self.context.chat.engine, changes(self.context.chat)
        in_force = {**engine.settings, **own}
        sampling = {name: in_force[name] for name in RACE_DEFAULTS if name in in_force}
        wanted = {name: value for name, value in engine.wanted.items() if name not in SPECULATION}
        names = (engine.pair, self._against if self._against != engine.pair else f"{engine.pair} again")
        wanted["pair"] = self._against
        self._play(ModelRace(messages, seed, self.context.race_ids, names, wanted, own, sampling))

    def begin_again(self) -> None:
        self._refresh_timer.resume()
        self._play(self._race.again())
        self._send(self._race.begin())

    def _play(self, race: ModelRace) -> None:
        self._race, self.context.chat.background.racing = race, True
        self.playback = Playback(race, self.context.setup.clock)

    def _send(self, commands: Addressed) -> None:
        for side, command in commands:
            if side == "own":
                self.context.session.send(command)
            elif self._link is not None:
                self._link.send(command)
