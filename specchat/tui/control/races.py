"""Races held in the app: begins them, hands them their events, and leaves the chat as it was."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from specchat.engine.near.race import RACE_DEFAULTS, Race, fresh_seed, refuse_plain
from specchat.engine.protocol.chat_message import Message
from specchat.engine.protocol.events import Event
from specchat.errors import UsageError
from specchat.settings import GREEDY
from specchat.tui.control.engine_session import EngineSession
from specchat.tui.ports import AppPorts
from specchat.tui.screens.bench import BenchScreen
from specchat.tui.screens.race import RaceScreen
from specchat.tui.state.race_playback import Contest, RacePlayback
from specchat.tui.state.race_series import Asked, RaceSeries
from specchat.tui.state.session import Chat

_QUESTIONS = 6
_REPLY_TOKENS = 96
"""How long the replies of a benchmark are at most."""

_FIRST_ID = 2_000_000_000
"""Ids from here on are no reply of the chat's, which therefore never hears of them."""


class Races:
    """The race that is being held, if any. Settings in force are never touched: both sides are written apart.

    Args:
        questions: what a benchmark asks, one of each category after the other.
        clock: seconds; only differences count.
    """

    def __init__(
        self,
        chat: Chat,
        session: EngineSession,
        ports: AppPorts,
        questions: Callable[[], Sequence[Asked]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.clock = clock
        self._chat, self._session, self._ports = chat, session, ports
        self._questions = questions
        self._ids = itertools.count(_FIRST_ID)
        self._screen: RaceScreen | BenchScreen | None = None

    @property
    def _contest(self) -> Contest:
        """The pair and the settings in force."""
        ready = self._chat.engine.ready
        return Contest(ready.pair if ready else "", ready.dtype if ready else "", self._chat.engine.settings)

    def race(self, prompt: str) -> None:
        """Race on the last question of the chat, or on a prompt that would follow the chat.

        Raises:
            UsageError: the engine is not free, there is no question, or the settings are plain decoding.
        """
        self._check()
        messages = self._messages(prompt)
        self._screen = RaceScreen(self._contest, self._ports.key_of, self._course(messages, self._seed()))
        self._ports.push_screen(self._screen)

    def bench(self, argument: str) -> None:
        """Measure the settings in force against plain decoding on a few questions, or for some seconds.

        Raises:
            UsageError: the engine is not free, the argument is no number, or the settings are plain decoding.
        """
        self._check()
        count, seconds = _amount(argument)
        questions = list(self._questions())[:count]
        if not questions:
            raise UsageError("no questions come with this installation")
        self._screen = BenchScreen(self._contest, self._ports.key_of, self._series(questions, self._seed(), seconds))
        self._ports.push_screen(self._screen)

    def again(self) -> None:
        """The same once more."""
        if not self._chat.can_generate:
            return
        if isinstance(self._screen, RaceScreen):
            race = self._screen.meeting.race
            self._screen.begin(self._course(race.messages, race.seed))
        elif isinstance(self._screen, BenchScreen):
            series = self._screen.meeting
            self._screen.begin(self._series(series.questions, series.seed, series.seconds))

    def leave(self) -> bool:
        """Stop what runs and close the screen; False if there is none."""
        if self._screen is None:
            return False
        self._stop(self._screen)
        self._screen.dismiss(None)
        self._screen = None
        return True

    def stop_or_leave(self) -> None:
        """Stop what runs and let it be looked at; where nothing runs, close the screen."""
        if self._screen is not None and self._stop(self._screen):
            self._screen.show()
        else:
            self.leave()

    def take(self, events: Sequence[Event]) -> list[Event]:
        """Hand a race its events and show it; gives back those that are also, or only, the chat's."""
        if self._screen is not None and events:
            for event in events:
                if (command := self._screen.meeting.hear(event)) is not None:
                    self._session.send(command)
            self._screen.show()
        return [event for event in events if not _apart(event)]

    def _course(self, messages: Sequence[Message], seed: int) -> RacePlayback:
        course = RacePlayback(Race(messages, seed, self._ids, self._changes()), self.clock)
        self._session.send(course.race.begin())
        return course

    def _series(self, questions: Sequence[Asked], seed: int, seconds: float | None) -> RaceSeries:
        changes = {**self._changes(), "max_tokens": min(self._contest.longest, _REPLY_TOKENS)}
        series = RaceSeries(questions, seed, self._ids, changes, self.clock, seconds)
        self._session.send(series.begin())
        return series

    def _changes(self) -> dict[str, Any]:
        """Settings that a race has and the chat has not: greedy, unless the user asked for a temperature."""
        asked, settings = self._chat.engine.wanted, self._chat.engine.settings
        kept = GREEDY.keys() if "temperature" in asked else asked.keys()
        changes = {name: value for name, value in RACE_DEFAULTS.items() if name not in kept}
        if "max_tokens" in changes:
            changes["max_tokens"] = min(self._contest.longest, changes["max_tokens"])
        return {name: value for name, value in changes.items() if settings.get(name, value) != value}

    def _seed(self) -> int:
        """The pinned one, else a fresh one."""
        pinned = int(self._chat.engine.settings.get("seed", -1))
        return pinned if pinned >= 0 else fresh_seed()

    def _stop(self, screen: RaceScreen | BenchScreen) -> bool:
        command = screen.meeting.stop()
        if command is not None:
            self._session.send(command)
        return command is not None

    def _check(self) -> None:
        chat = self._chat
        if self._session.player is not None:
            raise UsageError("a recording cannot race: there is no engine")
        if chat.running is not None:
            raise UsageError(self._session.busy)
        if not chat.can_generate:
            raise UsageError("no pair is ready")
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


def _amount(argument: str) -> tuple[int, float | None]:
    """`12`: so many questions; `60s`: as many as fit into a minute; nothing: a few."""
    if not argument:
        return _QUESTIONS, None
    number = argument.removesuffix("s")
    if not number.isascii() or not number.isdigit() or int(number) == 0:
        raise UsageError(f"{argument!r} is neither a number of questions, such as 12, nor a time, such as 60s")
    return (sys.maxsize, float(number)) if number != argument else (int(number), None)


def _apart(event: Event) -> bool:
    """The event answers something that was asked apart from the chat."""
    id = getattr(event, "id", None)
    return id is not None and id >= _FIRST_ID
