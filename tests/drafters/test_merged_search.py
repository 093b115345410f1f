"""A merge that compiled code grows in one call is the one that grows level by level: trees, passes, what is learnt."""

from __future__ import annotations

import itertools

import pytest
import torch
from contracts.models import shared_network
from contracts.tiny_networks import tiny_trained

from specchat.compiled.build import NativeUnavailable
from specchat.config.trained_drafters import TrainedDrafters
from specchat.core.budget import Budget
from specchat.core.context import Context
from specchat.decoding.assemble import assemble, sampling
from specchat.drafters import merged_search
from specchat.drafters.merge import Merge
from specchat.drafters.parts import PairResources
from specchat.errors import ModelError
from specchat.models.base.shape import Shape
from specchat.models.files.tensor_source import TensorSource
from specchat.models.learned import network_loading
from specchat.models.learned.text_inputs import TextInputs
from specchat.models.native.network import NativeNetwork
from specchat.models.own.decoder import Decoder
from specchat.settings import Settings
from specchat.structures.guess_search import GuessSearch

TEXT = [3, 5, 9, 5, 3, 7, 9, 2, 5, 3, 11, 4]
BUDGETS = (
    *(Budget(2, 2, 2), Budget(6, 3, 3), Budget(1), Budget(12, 4, 2), Budget(40, 9, 8), Budget(5, 3, 3, passes=False)),
    *(Budget(9, 5, 4, (0.01, 0.02, 0.1)), Budget(8, 6, 3, pass_price=0.2), Budget(0)),
)


@pytest.fixture(scope="module")
def target():
    network = shared_network("llama")
    shape = Shape.of(network.config)
    try:
        return Decoder(NativeNetwork(shape, TensorSource(network.state_dict()), "int8"), 256)
    except NativeUnavailable as error:
        pytest.skip(str(error))


@pytest.fixture
def grown(monkeypatch):
    """How many trees compiled code grew."""
    trees, grow = [], GuessSearch.grow

    def counted(self, *given):
        found = grow(self, *given)
        if isinstance(found, list):
            trees.append(found)
        return found

    monkeypatch.setattr(GuessSearch, "grow", counted)
    return trees


def spoken(target, of, budgets=BUDGETS, tokens=120, **settings):
    """Trees, passes and text of a reply whose rounds have these budgets in turn."""
    chosen = {"drafter": "merge", "policy": "best_first", "temperature": 0.0, "method_options": {"merge.of": of}}
    resources = PairResources(trained=TrainedDrafters("tiny", (tiny_trained("hydra", target),)))
    settings = Settings().but({**chosen, **settings})
    speculator = assemble(settings, target, None, resources=resources)
    context = Context(list(TEXT), len(TEXT), target.vocab_size, sampling=sampling(settings))
    speculator.start(context.history)
    turns = itertools.cycle(budgets)
    speculator.controller.plan = lambda context: next(turns)
    rounds = []
    while len(context.history) < len(TEXT) + tokens:
        round = speculator.round(context)
        draws = [round.tree.draws(node) for node in range(len(round.tree))]
        rounds.append((round.tree.tokens, round.tree.parents, draws, round.draft_passes))
    return rounds, context.history


def level_by_level(monkeypatch):
    monkeypatch.setattr(Merge, "grow_best_first", lambda self, context, shape: None)


@pytest.mark.parametrize("batch", [0, 2])
@pytest.mark.parametrize(
    "of", ["suffix+hydra", "hydra+suffix", "suffix(depth=4)+suffix+hydra", "hydra(tokens=4)+hydra", "suffix"]
)
def test_compiled_code_grows_the_trees_that_level_by_level_grow(target, monkeypatch, grown, of, batch):
    options = {"method_options": {"merge.of": of, "best_first.batch": str(batch)}}
    at_once = spoken(target, of, **options)
    assert len(grown) > 20
    assert sum(len(tokens) - 1 for tokens, *_ in at_once[0]) > 100
    level_by_level(monkeypatch)
    grown.clear()
    assert spoken(target, of, **options) == at_once
    assert not grown


def test_what_one_way_learns_the_other_knows(target, monkeypatch, grown):
    """Every second round is grown level by level."""
    alone = spoken(target, "suffix+hydra")
    assert len(grown) > 20
    grow, turn = Merge.grow_best_first, itertools.cycle([True, False])
    monkeypatch.setattr(
        Merge, "grow_best_first", lambda self, context, shape: grow(self, context, shape) if next(turn) else None
    )
    assert spoken(target, "suffix+hydra") == alone


def test_tokens_that_the_network_does_not_know_are_told_to_it(target, monkeypatch, grown):
    known = spoken(target, "suffix+hydra")
    monkeypatch.setattr(network_loading, "_LEARNT_TOKENS", 0)
    grown.clear()
    assert spoken(target, "suffix+hydra") == known
    assert len(grown) > 20


@pytest.mark.parametrize("settings", [{"temperature": 0.8}, {"repetition_penalty": 1.2}], ids=["sampled", "penalised"])
def test_guesses_that_the_sampling_settings_change_are_asked_for_level_by_level(target, grown, settings):
    assert spoken(target, "suffix+hydra", tokens=20, **settings)[1][len(TEXT) :]
    assert not grown


def test_a_tree_of_which_too_much_might_be_read_grows_level_by_level(target, grown, monkeypatch):
    monkeypatch.setattr(merged_search, "_MOST_ROWS", 30)
    spoken(target, "suffix+hydra", (Budget(16, 4, 2), Budget(2, 2, 2)), tokens=20)
    assert max(len(tree) for tree in grown) == 2


def test_states_that_are_no_numbers_are_refused_by_name(target, monkeypatch):
    monkeypatch.setattr(TextInputs, "at", lambda self, position: torch.full((target.hidden_size,), torch.nan))
    with pytest.raises(ModelError, match="no numbers"):
        spoken(target, "suffix+hydra", (Budget(6, 3, 3),))
