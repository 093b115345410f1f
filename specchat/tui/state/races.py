"""The playback of a race, and a series of races, one for each question, with figures by category.

Both sides of a race start together, and each is shown by its own decoding time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specchat.engine.client.model_race import ModelRace
from specchat.engine.client.race import SIDES, Heat, Race, Side
from specchat.engine.protocol.commands import Command, Message
from specchat.engine.protocol.events import Event

_SHORTEST_BAR = 64


class Playback:
    """Which rounds of a race are shown now.

    The engine decodes both sides alternately. Shown is the state of both after the same decoding time. While they are
    decoded, that is the smaller of the two times; once both are complete, it runs on to the end of the slower side.

    Args:
        clock: seconds; only differences count.
    """

    def __init__(self, race: Race | ModelRace, clock: Callable[[], float]) -> None:
        self.race = race
        self._clock = clock
        self._written_at: tuple[float, float] | None = None  # when both were complete, and the decoding time shown then
        self._skipped = False

    def heard(self) -> None:
        """The race has taken events."""
        if self._written_at is None and all(heat.finished for heat in self.race.heats.values()):
            self._written_at = self._clock(), min(heat.decode_s for heat in self.race.heats.values())

    @property
    def moving(self) -> bool:
        """Whether the picture changes without new events."""
        return not self.race.ended or not self.finished

    @property
    def finished(self) -> bool:
        return self.race.ended and all(
            self.shown_rounds(side) == len(heat.rounds) for side, heat in self.race.heats.items()
        )

    def skip(self) -> None:
        """Show the end at once; without effect while the engine still decodes."""
        self._skipped = self.race.running is None

    def shown_rounds(self, side: Side) -> int:
        heat = self.race.heats[side]
        return sum(round.at_s - heat.began_s <= self._shown_s for round in heat.rounds)

    def elapsed(self, side: Side) -> float:
        return min(self._shown_s, self.race.heats[side].decode_s)

    def done(self, side: Side) -> bool:
        heat = self.race.heats[side]
        return heat.finished is not None and self.shown_rounds(side) == len(heat.rounds)

    def tokens(self, side: Side) -> int:
        return sum(len(round.pieces) for round in self.race.heats[side].rounds[: self.shown_rounds(side)])

    @property
    def full_bar_tokens(self) -> int:
        """How many tokens fill a bar, of either side and from start to end: twice as many whenever a reply needs it."""
        written = max(len(heat.tokens) for heat in self.race.heats.values())
        return max(_SHORTEST_BAR, 1 << max(0, written - 1).bit_length())

    @property
    def length(self) -> int:
        """The tokens of the reply, once a side is complete; 0 before."""
        return max((len(heat.tokens) for heat in self.race.heats.values() if heat.finished), default=0)

    @property
    def _shown_s(self) -> float:
        if self._skipped or self.race.phase in ("failed", "stopped"):
            return math.inf
        if self._written_at is not None:
            then, shown_s = self._written_at
            return shown_s + self._clock() - then
        return min((heat.decode_s for heat in self.race.heats.values() if heat.finished is None), default=math.inf)


ALL = "all"


@dataclass(frozen=True)
class BenchQuestion:
    category: str
    prompt: str


@dataclass(frozen=True)
class CategoryFigures:
    """The races of one category.

    Args:
        ratio: time of plain decoding over the other's, both for as many tokens as plain wrote.
        same: races whose sides wrote the same tokens.
        sound: no race differs in a way that its rule excludes.
    """

    category: str
    races: int
    plain_tokens_per_s: float
    tokens_per_s: float
    ratio: float
    acceptance_length: float
    same: int
    sound: bool
    promised: bool


class RaceSeries:
    """Runs the races one after another; the side that begins alternates.

    Args:
        questions: in the order in which they are used.
        seed: of the first race; each further race adds 1.
        seconds: no new race begins after this time; None: no limit.
        clock: seconds; only differences count.
    """

    def __init__(
        self,
        questions: Sequence[BenchQuestion],
        seed: int,
        ids: Iterator[int],
        changes: Mapping[str, Any],
        clock: Callable[[], float],
        seconds: float | None = None,
    ) -> None:
        self.questions = list(questions)
        self.seed = seed
        self.seconds = seconds
        self.finished_races: list[tuple[BenchQuestion, Race]] = []
        self.problem = ""
        self.stopped = self.complete = False
        self._ids = ids
        self._changes = dict(changes)
        self._clock = clock
        self._began = clock()
        self.race = self._race()

    @property
    def ended(self) -> bool:
        return bool(self.problem) or self.stopped or self.complete

    @property
    def question(self) -> BenchQuestion:
        return self.questions[min(len(self.finished_races), len(self.questions) - 1)]

    @property
    def progress(self) -> float:
        """The share that is done, by questions or by time."""
        if self.ended:
            return 1.0
        if self.seconds is not None:
            return min(1.0, (self._clock() - self._began) / self.seconds)
        running = {"warming": 0.0, "racing": 0.5}.get(self.race.phase, 0.9)
        return (len(self.finished_races) + running) / len(self.questions)

    def begin(self) -> Command:
        return self.race.begin()

    def stop(self) -> Command | None:
        if self.ended:
            return None
        self.stopped = True
        return self.race.stop()

    def hear(self, event: Event) -> Command | None:
        if self.ended:
            return None
        command = self.race.hear(event)
        if self.race.phase == "failed":
            self.problem = self.race.problem
        elif self.race.phase == "over":
            self.finished_races.append((self.question, self.race))
            late = self.seconds is not None and self._clock() - self._began >= self.seconds
            self.complete = late or len(self.finished_races) == len(self.questions)
            if not self.complete:
                self.race = self._race()
                return self.race.begin()
        return command

    def groups(self) -> list[CategoryFigures]:
        """The figures of every category that has a finished race, and of all together."""
        categories = dict.fromkeys(asked.category for asked, _ in self.finished_races)
        parts = {name: [race for asked, race in self.finished_races if asked.category == name] for name in categories}
        if len(parts) > 1:
            parts[ALL] = [race for _, race in self.finished_races]
        return [_figures_of(name, races) for name, races in parts.items()]

    def _race(self) -> Race:
        number = len(self.finished_races)
        order = SIDES if number % 2 == 0 else SIDES[::-1]
        messages = [Message("user", self.question.prompt)]
        return Race(messages, self.seed + number, self._ids, self._changes, order, warm_up=not number)


def _figures_of(category: str, races: Sequence[Race]) -> CategoryFigures:
    plain, other = [race.plain for race in races], [race.speculative for race in races]
    (plain_tokens, plain_s), (tokens, other_s) = _totals(plain), _totals(other)
    equal_s = sum(race.plain.decode_s / race.ratio if race.ratio else 0.0 for race in races)
    return CategoryFigures(
        category=category,
        races=len(races),
        plain_tokens_per_s=_ratio(plain_tokens, plain_s),
        tokens_per_s=_ratio(tokens, other_s),
        ratio=_ratio(plain_s, equal_s),
        acceptance_length=_ratio(tokens, sum(len(heat.rounds) for heat in other)),
        same=sum(race.same for race in races),
        sound=all(race.sound for race in races),
        promised=all(race.promised for race in races),
    )


def _totals(heats: Sequence[Heat]) -> tuple[int, float]:
    return sum(len(heat.tokens) for heat in heats), sum(heat.decode_s for heat in heats)


def _ratio(amount: float, of: float) -> float:
    return amount / of if of > 0 else 0.0
