"""A drafter in C reads a whole tree in one call, and the tree is the one that it would grow level by level."""

from __future__ import annotations

import pytest
from contracts.models import shared_network
from contracts.tiny_networks import tiny_trained, trained_resources

from specchat.compiled.build import NativeUnavailable
from specchat.config.trained_drafters import TrainedDrafters
from specchat.core.budget import Budget
from specchat.core.context import Context
from specchat.decoding.assemble import assemble
from specchat.decoding.speculate import Plan
from specchat.drafters.combine import MemberGroup
from specchat.drafters.trained_network import TrainedNetworkDrafter
from specchat.models.cpu_kernels.kernels import Kernels
from specchat.models.cpu_kernels.network import NativeNetwork
from specchat.models.decoder.decoder import Decoder
from specchat.models.decoder.shape import Shape
from specchat.models.draft_heads import hydra as hydra_drafting
from specchat.models.weights.weight_source import TensorSource
from specchat.settings import Settings

TEXT = [3, 5, 9, 5, 3, 7, 9, 2, 5, 3, 11, 4]
HYDRA = {"drafter": "hydra", "policy": "best_first", "temperature": 0.0}
WITH_SUFFIX = {**HYDRA, "drafter": "merge", "method_options": {"merge.of": "suffix+hydra"}}


@pytest.fixture(scope="module")
def target():
    network = shared_network("llama")
    shape = Shape.of(network.config)
    try:
        return Decoder(NativeNetwork(shape, TensorSource(network.state_dict()), "int8"), 64)
    except NativeUnavailable as error:
        pytest.skip(str(error))


@pytest.fixture(autouse=True)
def _trees_grow_level_by_level(monkeypatch):
    """As under `chain` or in a cascade; else compiled code lets the network read what it needs (`compiled_search`)."""
    for drafter in (MemberGroup, TrainedNetworkDrafter):
        monkeypatch.setattr(drafter, "grow_at_once", lambda self, context, plan: None)


@pytest.fixture
def calls(monkeypatch):
    """How many rows each call of the drafter's kernels was asked for, and whether it went on by itself."""
    made, read = [], Kernels.hydra_read

    def counted(self, threads, head, hydra, tree, rows, search=None):
        made.append((rows, search is not None))
        read(self, threads, head, hydra, tree, rows, search)

    monkeypatch.setattr(Kernels, "hydra_read", counted)
    return made


def drafted(target, chosen, budget):
    speculator, context = begun(target, chosen, budget)
    return speculator.propose(context, Plan(budget)).tree


def begun(target, chosen, budget):
    resources = trained_resources(trained=TrainedDrafters("tiny", (tiny_trained("hydra", target),)))
    speculator = assemble(Settings().but(chosen), target, None, resources=resources)
    context = Context(list(TEXT), len(TEXT), target.vocab_size)
    speculator.start(context.history)
    context.budget = budget
    return speculator, context


def level_by_level(monkeypatch):
    begin = hydra_drafting.HydraDrafting.begin
    monkeypatch.setattr(hydra_drafting.HydraDrafting, "begin", lambda self, history, ahead=None: begin(self, history))


@pytest.mark.parametrize("chosen", [HYDRA, WITH_SUFFIX], ids=["alone", "merged"])
@pytest.mark.parametrize("budget", [Budget(1), Budget(6, 3, 3), Budget(12, 4, 2), Budget(9, 5, 4, (0.01, 0.02, 0.1))])
def test_reading_ahead_grows_the_tree_that_reading_level_by_level_grows(target, monkeypatch, chosen, budget):
    at_once = drafted(target, chosen, budget)
    level_by_level(monkeypatch)
    step_by_step = drafted(target, chosen, budget)
    assert (at_once.tokens, at_once.parents) == (step_by_step.tokens, step_by_step.parents)
    probabilities = [
        [draw.guess.logprob for node in range(len(tree)) for draw in tree.draws(node)]
        for tree in (at_once, step_by_step)
    ]
    assert probabilities[0] == probabilities[1]
    assert len(at_once) > 1


def test_a_tree_takes_one_call(target, calls, monkeypatch):
    budget = Budget(12, 4, 2)
    deepest = max(drafted(target, HYDRA, budget).depths)
    assert calls == [(1, True)]
    level_by_level(monkeypatch)
    calls.clear()
    drafted(target, HYDRA, budget)
    assert len(calls) == deepest > 2


def test_below_a_guess_of_another_drafter_rows_are_read_when_they_are_asked_for(target, calls):
    drafted(target, WITH_SUFFIX, Budget(12, 4, 3))
    assert calls[0] == (1, True)
    assert all(not ahead for _, ahead in calls[1:])


def test_the_drafter_works_with_the_threads_of_its_target(target):
    speculator, context = begun(target, HYDRA, Budget(4, 3, 2))
    target.network.time_phases(True)
    speculator.propose(context, Plan(context.budget))
    spent = target.network.phases()
    target.network.time_phases(False)
    assert spent["products"] > 0
