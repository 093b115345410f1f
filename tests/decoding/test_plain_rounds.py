"""Plain rounds inside a reply: where they are, what they leave alone, and that they bear out a true speed-up."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from contracts.kit import PROMPT, Letters, every, scripted_draft, scripted_target
from hypothesis import given, settings
from hypothesis import strategies as st

from specchat.controllers import CONTROLLERS
from specchat.core.budget import Budget
from specchat.core.round import Round
from specchat.core.speedup import Gaps
from specchat.decoding import speculate, stopwatch
from specchat.decoding.conversation import Conversation, ReplyEnded, RoundWritten
from specchat.decoding.plain_rounds import EVERY, PlainRounds
from specchat.models.other.scripted import ScriptedModel
from specchat.settings import Settings

Load = Callable[[int], float]

_ROUNDING = 1e-9
PASS_S, ROW_S, TELLING_S, NODE_TELLING_S = 0.010, 0.0006, 0.0010, 0.0001


@dataclass
class Written:
    """A reply by a scripted engine, and how much sooner it truly came."""

    rounds: list[Round]
    tokens: list[int]
    gaps: Gaps
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


def test_one_round_of_every_two_dozen_is_plain():
    written = write(controller="fixed")
    blocks = [index // EVERY for index in written.plain]
    assert blocks == list(range(blocks[-1] + 1))
    assert blocks[-1] >= len(written.rounds) // EVERY - 1


def test_plain_rounds_never_fall_in_step_with_anything():
    places = [index % EVERY for index in write(controller="fixed").plain]
    assert len(set(places)) > len(places) // 2
    assert len({after - before for before, after in itertools.pairwise(places)}) > 1


def test_every_reply_has_its_own():
    assert write(controller="fixed", replies=3, max_tokens=80).plain == write(controller="fixed", max_tokens=80).plain


def test_a_controller_that_decodes_plainly_anyway_is_left_alone():
    written = write(controller="off", drafter="none", max_tokens=100)
    assert {round.budget.why for round in written.rounds} == {"off"}


def test_whoever_measures_plain_decoding_apart_has_none():
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


def patterns() -> st.SearchStrategy[Pattern]:
    burst = st.tuples(st.floats(0, 1), st.floats(0.02, 0.6), st.floats(1, 4))
    return st.builds(Pattern, st.floats(0.2, 10), st.floats(0, 2), st.lists(burst, max_size=4).map(tuple))


@settings(max_examples=25)
@given(patterns(), st.sampled_from(["fixed", "goodput"]))
def test_under_any_load_the_figure_is_true_within_its_interval_and_never_above_tau(load, controller):
    written = write(load, controller=controller)
    found, tau = written.gaps.speedup, len(written.tokens) / len(written.rounds)
    if found is None:
        assert written.truth > 0.75 * tau, "only a figure near τ can come out above it"
        return
    assert found.high <= tau
    assert found.low - _ROUNDING <= written.truth <= found.high + _ROUNDING


def test_a_figure_from_plain_rounds_of_another_hour_would_be_wrong():
    """The control: what the same engine takes when idle says nothing of a reply beside another program."""
    idle, beside = write(controller="fixed"), write(Pattern(2.5, 0.0), controller="fixed")
    assert beside.gaps.speedup.value == pytest.approx(beside.truth)
    by_profile = len(beside.tokens) * (PASS_S + TELLING_S) / beside.gaps.seconds
    assert by_profile < 0.5 * beside.truth
    assert idle.truth == pytest.approx(beside.truth)
