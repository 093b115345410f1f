"""Plain rounds inside a reply: where they are, what they leave alone, and that they measure a true speed-up."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from contracts.kit import PROMPT, Letters, every, scripted_draft, scripted_target

from specchat.controllers import CONTROLLERS
from specchat.controllers.combined import EVERY, OPENING, SOONER, PlainRounds
from specchat.core.budget import Budget
from specchat.core.round import Round
from specchat.core.seams import Controller
from specchat.core.speedup import RoundIntervals
from specchat.decoding import reply_events as stopwatch
from specchat.decoding import speculate
from specchat.decoding.conversation import Conversation
from specchat.decoding.reply_events import ReplyEnded, RoundWritten
from specchat.models.backends.scripted import ScriptedModel
from specchat.settings import Settings

Load = Callable[[int], float]

_ROUNDING = 1e-9
PASS_S, ROW_S, TELLING_S, NODE_TELLING_S = 0.010, 0.0006, 0.0010, 0.0001


@dataclass
class Written:
    """A reply by a scripted engine, and how much sooner it truly came."""

    rounds: list[Round]
    tokens: list[int]
    gaps: RoundIntervals
    truth: float

    @property
    def plain(self) -> list[int]:
        return [round.index for round in self.rounds if round.budget.nodes == 0]


@dataclass
class Clock:
    """A clock that only work moves. `load` says how many times slower work is in a round."""

    load: Load
    now: float = 0.0
    round: int = 0

    def work(self, seconds: float) -> None:
        self.now += seconds * self.load(self.round)


@dataclass
class Timed:
    """A target whose passes take time by their rows."""

    model: ScriptedModel
    clock: Clock

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def read(self, tree: Any, *args: Any, **more: Any) -> Any:
        self.clock.work(PASS_S + ROW_S * (len(tree) - 1))
        return self.model.read(tree, *args, **more)


@contextmanager
def clocked(clock: Clock) -> Iterator[None]:
    """Rounds and replies are timed by this clock."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (speculate, stopwatch):
            patch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: clock.now))
        yield


def write(load: Load = lambda round: 1.0, *, replies: int = 1, plain_rounds: bool = True, **chosen: Any) -> Written:
    """The last of some replies; telling a round takes longer the more there is to tell."""
    clock = Clock(load)
    target = Timed(scripted_target(), clock)
    wanted = Settings().but({"drafter": "draft_model", "max_tokens": 600, "depth": 3, "nodes": 3, **chosen})
    conversation = Conversation(target, scripted_draft(), Letters(), wanted, plain_rounds=plain_rounds)
    with clocked(clock):
        return [_one_reply(conversation, clock) for _ in range(replies)][-1]


def _one_reply(conversation: Conversation, clock: Clock) -> Written:
    rounds: list[Round] = []
    would_be_s, clock.round = 0.0, 0
    for event in conversation.reply(PROMPT, 7):
        match event:
            case RoundWritten(round=round):
                rounds.append(round)
                clock.work(TELLING_S + NODE_TELLING_S * round.tree.drafted)
                would_be_s += len(round.emitted) * (PASS_S + TELLING_S) * clock.load(clock.round)
                clock.round += 1
            case ReplyEnded(gaps=gaps):
                tokens = [token for round in rounds for token in round.emitted]
                return Written(rounds, tokens, gaps, would_be_s / gaps.seconds)
    raise AssertionError("a reply ends")


def test_a_reply_opens_with_guesses_then_one_round_of_three_is_plain_then_of_twelve_and_later_of_two_dozen():
    written, begins = write(controller="fixed"), OPENING
    assert min(written.plain) > OPENING
    later = (len(written.rounds) - SOONER[-1][0]) // EVERY * EVERY
    for ends, size in (*SOONER, (SOONER[-1][0] + later, EVERY)):
        blocks = [(index - begins) // size for index in written.plain if begins <= index < ends]
        assert blocks == list(range((ends - begins) // size))
        begins = ends


def test_a_reply_that_is_too_short_for_a_figure_has_few_plain_rounds():
    assert write(controller="fixed", max_tokens=24).plain == []
    short = write(controller="fixed", max_tokens=40)
    assert short.gaps.speedup is None
    assert len(short.plain) <= 3


def test_plain_rounds_never_fall_in_step_with_anything():
    first = write(controller="fixed").plain[:8]
    for period in range(2, 13):
        together = max(sum(index % period == at for index in first) for at in range(period))
        assert together <= 5, f"of 8 plain rounds {together} would meet what happens every {period} rounds"


def test_a_reply_of_three_dozen_rounds_says_how_much_sooner_it_came():
    written = write(controller="fixed", max_tokens=78)
    assert 35 < len(written.rounds) <= 38
    found = written.gaps.speedup
    assert found.low - _ROUNDING <= written.truth <= found.high + _ROUNDING


def test_every_reply_has_its_own():
    third, second = (write(controller="fixed", replies=replies, max_tokens=80).plain for replies in (3, 2))
    assert third == second


def test_a_controller_that_decodes_plainly_anyway_is_left_alone():
    written = write(controller="off", drafter="none", max_tokens=100)
    assert {round.budget.why for round in written.rounds} == {"off"}


def test_there_are_none_where_plain_decoding_is_measured_apart():
    assert write(controller="fixed", plain_rounds=False).plain == []


@pytest.mark.parametrize("controller", every(CONTROLLERS))
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_plain_rounds_change_no_text(controller, temperature):
    chosen = {"controller": controller.name, "temperature": temperature, "max_tokens": 200}
    assert write(**chosen).tokens == write(**chosen, plain_rounds=False).tokens


def test_the_controller_inside_learns_from_every_round():
    heard: list[int] = []
    inside = SimpleNamespace(plan=lambda context: Budget(3), observe=lambda round: heard.append(round.index))
    controller = PlainRounds(inside)
    for index in range(EVERY):
        budget = controller.plan(SimpleNamespace(round=index))
        controller.observe(SimpleNamespace(index=index, budget=budget))
    assert heard == list(range(EVERY))


@dataclass(frozen=True)
class Pattern:
    """What else the machine does: all of the time, more and more, and at times."""

    always: float
    drift: float
    bursts: tuple[tuple[float, float, float], ...] = field(default=())  # where, how long, how many times slower

    def __call__(self, round: int) -> float:
        at = round / 300
        factor = self.always * (1 + self.drift * at)
        for begins, lasts, slower in self.bursts:
            if begins <= at < begins + lasts:
                factor *= slower
        return factor


def some_pattern(random: Random) -> Pattern:
    bursts = [(random.random(), random.uniform(0.02, 0.6), random.uniform(1, 4)) for _ in range(random.randrange(5))]
    return Pattern(random.uniform(0.2, 10), random.uniform(0, 2), tuple(bursts))


def simulate(load: Pattern, random: Random, rounds: int, inside: Controller) -> tuple[RoundIntervals, float]:
    """A reply's gaps and the true speed-up, by the cost of its rounds alone: no engine writes it."""
    controller, gaps, clock, would_be_s = PlainRounds(inside), RoundIntervals(), Clock(load), 0.0
    for index in range(rounds):
        clock.round = index
        nodes = (budget := controller.plan(SimpleNamespace(round=index))).nodes
        began_s, emitted = clock.now, 1 + _accepted(nodes, random)
        clock.work(PASS_S + ROW_S * nodes)
        gaps.add(clock.now, clock.now - began_s, emitted, nodes, nodes == 0)
        clock.work(TELLING_S + NODE_TELLING_S * nodes)
        would_be_s += emitted * (PASS_S + TELLING_S) * load(index)
        controller.observe(SimpleNamespace(index=index, budget=budget))
    gaps.end(clock.now)
    return gaps, would_be_s / clock.now


def _accepted(nodes: int, random: Random) -> int:
    return next((depth for depth in range(nodes) if random.random() > 0.6), nodes)


def drafts_always() -> Controller:
    return SimpleNamespace(plan=lambda context: Budget(3), observe=lambda round: None)


def drafts_in_the_first_half() -> Controller:
    return SimpleNamespace(plan=lambda context: Budget(3 if context.round < 60 else 0), observe=lambda round: None)


@pytest.mark.parametrize("rounds", [36, 64, 110, 200, 300])
@pytest.mark.parametrize("inside", [drafts_always, drafts_in_the_first_half])
def test_under_any_load_the_interval_holds_the_truth_as_often_as_it_says_and_no_figure_is_above_tau(rounds, inside):
    held, shown = 0, 0
    for seed in range(400):
        random = Random(seed)
        gaps, truth = simulate(some_pattern(random), random, rounds, inside())
        if (found := gaps.speedup) is None:
            continue
        shown += 1
        assert found.high <= gaps.tokens / gaps.rounds
        held += found.low - _ROUNDING <= truth <= found.high + _ROUNDING
    assert shown > 300
    assert held / shown > 0.92, "a 95 % interval, and 400 replies say it within some 2 %"


def test_a_figure_is_above_the_bar_of_the_test_only_with_its_own_interval():
    """The control: intervals of half the width are wrong too often."""
    held = 0
    for seed in range(400):
        random = Random(seed)
        gaps, truth = simulate(some_pattern(random), random, 200, drafts_always())
        if (found := gaps.speedup) is not None:
            held += abs(truth - found.value) <= (found.high - found.value) / 2
    assert held / 400 < 0.9


@pytest.mark.parametrize("controller", ["fixed", "goodput"])
def test_an_engines_own_rounds_say_the_truth_beside_bursts_of_other_work(controller):
    written = write(Pattern(1.0, 0.5, ((0.2, 0.1, 2.0), (0.6, 0.2, 1.5))), controller=controller)
    found = written.gaps.speedup
    assert found.low - _ROUNDING <= written.truth <= found.high + _ROUNDING


def test_a_figure_from_plain_rounds_of_another_hour_would_be_wrong():
    """The control: what the same engine takes when idle says nothing of a reply beside another program."""
    idle, beside = write(controller="fixed"), write(Pattern(2.5, 0.0), controller="fixed")
    assert beside.gaps.speedup.value == pytest.approx(beside.truth)
    by_profile = len(beside.tokens) * (PASS_S + TELLING_S) / beside.gaps.seconds
    assert by_profile < 0.5 * beside.truth
    assert idle.truth == pytest.approx(beside.truth)
