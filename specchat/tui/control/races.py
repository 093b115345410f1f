"""Races and benchmarks in the app: starts and stops them and gives them their events. The chat is not changed."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from specchat.engine.client.race import RACE_DEFAULTS, Race, fresh_seed, refuse_plain
from specchat.engine.protocol.commands import Message
from specchat.engine.protocol.events import Event
from specchat.errors import UsageError
from specchat.settings import GREEDY
from specchat.tui.control.engine_session import EngineSession
from specchat.tui.ports import AppPorts
from specchat.tui.screens.bench import BenchScreen
from specchat.tui.screens.race import RaceScreen
from specchat.tui.state.chat import Chat
from specchat.tui.state.races import BenchQuestion, RacePlayback, RaceSeries, RaceSetup

_QUESTIONS = 6
_REPLY_TOKENS = 96
"""The most tokens of a reply in a benchmark."""

_FIRST_ID = 2_000_000_000
"""Ids from here on belong to races; the chat ignores events with them."""


class Races:
    """Starts a race or a benchmark on a screen of its own. The settings in force stay as they are.

    Args:
        questions: the prompts of a benchmark, ordered so that the first ones cover every category.
        clock: seconds; only differences count.
    """

    def __init__(
        self,
        chat: Chat,
        session: EngineSession,
        ports: AppPorts,
        questions: Callable[[], Sequence[BenchQuestion]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.clock = clock
        self._chat, self._session, self._ports = chat, session, ports
        self._questions = questions
        self._ids = itertools.count(_FIRST_ID)
        self._screen: RaceScreen | BenchScreen | None = None

    @property
    def _setup(self) -> RaceSetup:
        """The pair, and the settings that hold for a race."""
        ready, settings = self._chat.engine.ready, {**self._chat.engine.settings, **self._changes()}
        return RaceSetup(ready.pair if ready else "", ready.dtype if ready else "", settings)

    @property
    def on(self) -> bool:
        """A race or a benchmark is on the screen."""
        return self._screen is not None

    def race(self, prompt: str) -> None:
        """Race on the last question of the chat, or on a prompt that would follow the chat.

        Raises:
            UsageError: the engine is not free, there is no question, or the settings are plain decoding.
        """
        self._require_ready()
        messages = self._messages(prompt)
        self._screen = RaceScreen(self._setup, self._ports.key_of, self._begin_race(messages, self._seed()))
        self._ports.push_screen(self._screen)

    def bench(self, argument: str) -> None:
        """Measure the settings in force against plain decoding on a few questions, or for some seconds.

        Raises:
            UsageError: the engine is not free, the argument is not a number, or the settings are plain decoding.
        """
        self._require_ready()
        count, seconds = _parse_amount(argument)
        questions = list(self._questions())[:count]
        if not questions:
            raise UsageError("no questions come with this installation")
        self._screen = BenchScreen(
            self._setup, self._ports.key_of, self._begin_series(questions, self._seed(), seconds)
        )
        self._ports.push_screen(self._screen)

    def again(self) -> None:
        """Run the same race or benchmark again."""
        if not self._chat.can_generate:
            return
        if isinstance(self._screen, RaceScreen):
            race = self._screen.playback.race
            self._screen.begin(self._begin_race(race.messages, race.seed))
        elif isinstance(self._screen, BenchScreen):
            series = self._screen.series
            self._screen.begin(self._begin_series(series.questions, series.seed, series.seconds))

    def leave(self) -> bool:
        """Stop what runs and close the screen; False if there is none."""
        if self._screen is None:
            return False
        self._stop(self._screen)
        while (top := self._ports.screen()) is not self._screen:  # help, or a list of commands
            top.dismiss(None)
        self._screen.dismiss(None)
        self._screen = None
        return True

    def stop_or_leave(self) -> None:
        """Stop the run and keep its screen open; where nothing runs, close the screen."""
        if self._screen is not None and self._stop(self._screen):
            self._screen.show()
        else:
            self.leave()

    def dispatch(self, events: Sequence[Event]) -> list[Event]:
        """Give events to the race or benchmark that runs; returns the events that are not answers to one."""
        if self._screen is not None and events:
            run = _run_of(self._screen)
            for event in events:
                if (command := run.apply(event)) is not None:
                    self._session.send(command)
            self._screen.show()
        return [event for event in events if not _is_race_event(event)]

    def _begin_race(self, messages: Sequence[Message], seed: int) -> RacePlayback:
        playback = RacePlayback(Race(messages, seed, self._ids, self._changes()), self.clock)
        self._session.send(playback.race.begin())
        return playback

    def _begin_series(self, questions: Sequence[BenchQuestion], seed: int, seconds: float | None) -> RaceSeries:
        changes = {**self._changes(), "max_tokens": min(self._setup.max_tokens, _REPLY_TOKENS)}
        series = RaceSeries(questions, seed, self._ids, changes, self.clock, seconds)
        self._session.send(series.begin())
        return series

    def _changes(self) -> dict[str, Any]:
        """Settings of a race that differ from the chat's: greedy, unless the user asked for a temperature."""
        asked, settings = self._chat.engine.wanted, self._chat.engine.settings
        kept = GREEDY.keys() if "temperature" in asked else asked.keys()
        changes = {name: value for name, value in RACE_DEFAULTS.items() if name not in kept}
        if "max_tokens" in changes:
            changes["max_tokens"] = min(settings.get("max_tokens", 0), changes["max_tokens"])
        return {name: value for name, value in changes.items() if settings.get(name, value) != value}

    def _seed(self) -> int:
        """The seed that the settings fix, else a new one."""
        pinned = int(self._chat.engine.settings.get("seed", -1))
        return pinned if pinned >= 0 else fresh_seed()

    def _stop(self, screen: RaceScreen | BenchScreen) -> bool:
        command = _run_of(screen).stop()
        if command is not None:
            self._session.send(command)
        return command is not None

    def _require_ready(self) -> None:
        if self._session.player is not None:
            raise UsageError("a recording cannot race: there is no engine")
        self._session.require_free()
        refuse_plain(self._chat.engine.settings)

    def _messages(self, prompt: str) -> list[Message]:
        messages = self._chat.messages()
        if prompt:
            return [*messages, Message("user", prompt)]
        while messages and messages[-1].role != "user":
            messages.pop()
        if not messages:
            raise UsageError("there is no question to race on yet: /race PROMPT gives one")
        return messages


def _run_of(screen: RaceScreen | BenchScreen) -> RacePlayback | RaceSeries:
    """What the screen shows: one race, or a series of them."""
    return screen.playback if isinstance(screen, RaceScreen) else screen.series


def _parse_amount(argument: str) -> tuple[int, float | None]:
    """How many questions and for how many seconds: `12` is 12 questions, `60s` a minute, nothing the default."""
    if not argument:
        return _QUESTIONS, None
    number = argument.removesuffix("s")
    if not number.isascii() or not number.isdigit() or int(number) == 0:
        raise UsageError(f"{argument!r} is neither a number of questions, such as 12, nor a time, such as 60s")
    return (sys.maxsize, float(number)) if number != argument else (int(number), None)


def _is_race_event(event: Event) -> bool:
    """Whether the event answers a command of a race."""
    id = getattr(event, "id", None)
    return id is not None and id >= _FIRST_ID
