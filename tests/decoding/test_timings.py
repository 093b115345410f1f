"""Times of a round are those of its parts, also where a device answers late."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from contracts.kit import Always, V, context_for, make_policy, make_rule, target_says
from contracts.proposing import Proposing, counting_up

from specchat.acceptance import ACCEPTANCE_RULES
from specchat.controllers.goodput import Goodput
from specchat.controllers.options import GoodputOptions
from specchat.core.budget import Budget
from specchat.core.costs import Costs
from specchat.core.reading import Reading
from specchat.core.record import record
from specchat.decoding import speculate
from specchat.decoding.speculate import Speculator
from specchat.models.backends.scripted import ScriptedModel
from specchat.trees import TREE_POLICIES


class Clock:
    """A clock that advances only when told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


@record
class LateReading(Reading):
    """Logits that are ready only at a certain time: reading them waits until then."""

    clock: Clock = dataclasses.field(default_factory=Clock)
    ready: float = 0.0

    def after(self, node):
        self.clock.now = max(self.clock.now, self.ready)
        return super().after(node)


class LateModel(ScriptedModel):
    """A model on a device: `read` returns at once, and so many seconds later the pass is over."""

    def __init__(self, clock: Clock, pass_s: float, device: str) -> None:
        super().__init__(V, target_says())
        self.device = torch.device(device)
        self._clock, self._pass_s = clock, pass_s

    def read(self, tree, *arguments, **named):
        reading = super().read(tree, *arguments, **named)
        seconds = self._pass_s * len(tree)
        ready = self._clock.now + seconds
        if self.device.type == "cpu":
            self._clock.now = ready
        values = {field.name: getattr(reading, field.name) for field in dataclasses.fields(Reading)}
        return LateReading(**values, clock=self._clock, ready=ready)


def speculator(clock, device, controller):
    parts = Proposing(counting_up), make_policy(TREE_POLICIES["chain"]), make_rule(ACCEPTANCE_RULES["follow"])
    return Speculator(LateModel(clock, 1.0, device), *parts, controller)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_verifying_takes_until_the_pass_is_over_not_until_it_was_asked_for(monkeypatch, device):
    clock = Clock()
    monkeypatch.setattr(speculate, "time", clock)
    context = context_for()
    subject = speculator(clock, device, Always(Budget(3, 3, 1)))
    subject.target.prefill(context.history[:-1])
    timings = subject.round(context).timings
    assert timings.verify_s == 4.0
    assert timings.other_s == 0.0


class Slow(Always):
    """Takes 2 seconds to plan a round, and 3 to learn from it."""

    def __init__(self, budget: Budget, clock: Clock) -> None:
        super().__init__(budget)
        self._clock = clock

    def plan(self, context):
        self._clock.now += 2.0
        return super().plan(context)

    def observe(self, round):
        assert round.timings.learn_s == 0.0, "a controller is shown what drafter and policy took alone"
        self._clock.now += 3.0


def test_what_the_controller_takes_counts_as_learning(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(speculate, "time", clock)
    context = context_for()
    subject = speculator(clock, "cpu", Slow(Budget(0), clock))
    subject.target.prefill(context.history[:-1])
    timings = subject.round(context).timings
    assert (timings.verify_s, timings.other_s, timings.learn_s) == (1.0, 5.0, 5.0)


def test_goodput_plans_on_a_device_as_it_would_on_the_host(monkeypatch):
    plans, costs = {}, {}
    for device in ("cpu", "cuda"):
        clock = Clock()
        monkeypatch.setattr(speculate, "time", clock)
        goodput = Goodput(GoodputOptions(), Budget(4, 4, 1), Costs(((1, 0.1), (32, 0.2))))
        subject, context = speculator(clock, device, goodput), context_for()
        subject.target.prefill(context.history[:-1])
        plans[device] = [subject.round(context).budget for _ in range(60)]
        costs[device] = goodput.costs.verify_s(1)
    assert plans["cuda"] == plans["cpu"]
    assert costs["cuda"] == costs["cpu"] > 0.5, "the profile was wrong, and rounds said so"


def test_reading_the_prompt_ends_before_the_first_round_begins(monkeypatch):
    waited = []
    monkeypatch.setattr(speculate, "synchronize", waited.append)
    subject = speculator(Clock(), "cuda", Always(Budget(0)))
    subject.start(context_for().history)
    assert waited == [torch.device("cuda")]
