"""Trees that compiled code grows in one call are those that grow level by level: nodes, passes, what is learnt."""

from __future__ import annotations

import itertools

import pytest
import torch
from contracts.models import shared_network
from contracts.tiny_networks import all_tiny_trained, tiny_trained, trained_resources

from specchat.compiled.build import NativeUnavailable
from specchat.config.trained_drafters import TrainedDrafters
from specchat.core.budget import Budget
from specchat.core.compiled_guessing import GrowthPlan
from specchat.core.context import Context
from specchat.core.tree import ROOT
from specchat.decoding.assemble import assemble, sampling
from specchat.drafters import compiled_search
from specchat.drafters.combine import MemberGroup
from specchat.drafters.compiled_search import CompiledDrafter
from specchat.drafters.merge import Merge
from specchat.errors import ModelError
from specchat.indexes.guess_search import GuessSearch
from specchat.models.cpu_kernels.network import NativeNetwork
from specchat.models.decoder.decoder import Decoder
from specchat.models.decoder.shape import Shape
from specchat.models.draft_heads import loading, methods
from specchat.models.draft_heads.drafting import TextInputs
from specchat.models.weights.weight_source import TensorSource
from specchat.settings import Settings

TEXT = [3, 5, 9, 5, 3, 7, 9, 2, 5, 3, 11, 4]
BUDGETS = (
    *(Budget(2, 2, 2), Budget(6, 3, 3), Budget(1), Budget(12, 4, 2), Budget(40, 9, 8), Budget(5, 3, 3, passes=False)),
    *(Budget(9, 5, 4, (0.01, 0.02, 0.1)), Budget(8, 6, 3, pass_price=0.2), Budget(0)),
)
SAMPLINGS = (
    {"temperature": 0.8},
    {"temperature": 0.5, "top_p": 0.9, "repetition_penalty": 1.1},
    {"repetition_penalty": 1.3},
    {"presence_penalty": 0.9, "frequency_penalty": 0.7},
    {"temperature": 1.2, "top_k": 5, "top_p": 0.7},
    {"temperature": 1.5, "min_p": 0.3, "repetition_penalty": 0.8, "frequency_penalty": 0.6},
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
        if isinstance(found, tuple):
            trees.append(found[0])
        return found

    monkeypatch.setattr(GuessSearch, "grow", counted)
    return trees


def spoken(target, of, budgets=BUDGETS, tokens=120, draft=None, **settings):
    """Trees, passes and text of a reply whose rounds have these budgets in turn."""
    chosen = {"drafter": "merge", "policy": "best_first", "temperature": 0.0, "method_options": {"merge.of": of}}
    resources = trained_resources(trained=all_tiny_trained(target))
    settings = Settings().but({**chosen, **settings})
    speculator = assemble(settings, target, draft, resources=resources)
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


def without_claims(round):
    """How likely its guesses are said to be left out."""
    tokens, parents, draws, passes = round
    return tokens, parents, [[(child, guess._replace(logprob=None)) for child, guess in some] for some in draws], passes


def claims(round):
    return [guess.logprob for some in round[2] for _, guess in some]


def level_by_level(monkeypatch):
    for drafter in (MemberGroup, CompiledDrafter):
        monkeypatch.setattr(drafter, "grow_at_once", lambda self, context, plan: None)


@pytest.mark.parametrize("batch", [0, 2])
@pytest.mark.parametrize(
    "of",
    [
        *("suffix+hydra", "hydra+suffix", "suffix(depth=4)+suffix+hydra", "hydra(tokens=4)+hydra", "suffix"),
        *("selector", "suffix+selector", "selector(tokens=4)+hydra"),
    ],
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


POLICIES = (
    "chain",
    "expansion",
    "best_first",
    "comb",
    "template",
    "specexec",
    "eagle2",
    "rsd_s",
    "confidence",
    "graph",
)
PARTS = ("suffix+token_recycling+hydra", "token_recycling+suffix")
ALONE = ("draft_model", "suffix", "token_recycling")


@pytest.mark.parametrize("of", PARTS + ALONE)
@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_has_the_trees_it_would_grow_itself(target, monkeypatch, grown, policy, of):
    options = {"policy": policy, "draft": target.with_new_cache()}
    if of in ALONE:
        options["drafter"] = of
    given = {"confidence.fallback": "0.02", "confidence.alpha": "0.01", "specexec.decay": "0.9"}
    given |= {"graph.repeat": "0", "expansion.widths": "3,2,2,1,1"}
    given = {"merge.of": of, **{name: value for name, value in given.items() if name.startswith(policy)}}
    at_once = spoken(target, of, method_options=given, tokens=80, **options)
    assert len(grown) > 10
    assert sum(len(tokens) - 1 for tokens, *_ in at_once[0]) > 60
    level_by_level(monkeypatch)
    grown.clear()
    options["draft"] = target.with_new_cache()
    step_by_step = spoken(target, of, method_options=given, tokens=80, **options)
    assert not grown
    assert step_by_step == at_once


def same_up_to_rounding(ours, theirs):
    """Whether two replies had the same trees; numpy and C sum in different orders."""
    assert ours[1] == theirs[1]
    for one, other in zip(ours[0], theirs[0], strict=True):
        assert without_claims(one) == without_claims(other)
        assert claims(one) == pytest.approx(claims(other), abs=1e-9)


@pytest.mark.parametrize("settings", [{}, {"policy": "graph"}, SAMPLINGS[1]], ids=["greedy", "graph", "sampled"])
@pytest.mark.parametrize("method", sorted(methods("head", "denoiser")))
def test_a_trained_network_alone_is_asked_by_compiled_code_too(target, monkeypatch, grown, method, settings):
    given = {"drafter": method, "tokens": 60, **settings}
    at_once = spoken(target, "none", **given)
    assert len(grown) > 15
    assert sum(len(tokens) - 1 for tokens, *_ in at_once[0]) > 40
    level_by_level(monkeypatch)
    grown.clear()
    same_up_to_rounding(spoken(target, "none", **given), at_once)
    assert not grown


@pytest.mark.parametrize("in_c", [True, False])
@pytest.mark.parametrize("method", ["medusa", "amphista", "parallel_spec", "selector", "hydra"])
def test_the_price_of_a_pass_stops_no_level_that_costs_none(target, monkeypatch, method, in_c):
    if not in_c:
        level_by_level(monkeypatch)

    def trees(price):
        budgets = (Budget(8, 3, 3, pass_price=price),)
        return spoken(target, "none", budgets, tokens=24, drafter=method)[0]

    def has_levels(trees):
        return any(parent > ROOT for _, parents, *_ in trees for parent in parents)

    free, priced = trees(0.0), trees(1.0)
    assert has_levels(free)
    assert has_levels(priced) == (method != "hydra"), "each level of hydra is a pass"
    assert priced == free or method == "hydra"


GROUPS = (
    {"fuse.draft": "draft_model", "fuse.lookup": "suffix", "fuse.top": "8"},
    {"fuse.draft": "draft_model", "fuse.lookup": "token_recycling", "fuse.top": "2"},
    {"fuse.draft": "hydra", "fuse.lookup": "suffix", "fuse.top": "4"},
    {"fuse.draft": "token_recycling", "fuse.lookup": "suffix(min_match=1)", "fuse.top": "1"},
    {"several.of": "suffix+draft_model+token_recycling"},
    {"several.of": "hydra(tokens=4)+hydra"},
)


@pytest.mark.parametrize("settings", [{}, {"policy": "comb"}, SAMPLINGS[1]], ids=["greedy", "comb", "sampled"])
@pytest.mark.parametrize("given", GROUPS, ids=lambda given: "-".join(given.values()))
def test_members_with_trees_of_their_own_are_asked_by_compiled_code_too(target, monkeypatch, grown, given, settings):
    drafter, _ = next(iter(given)).split(".")
    options = {"drafter": drafter, "method_options": given, "tokens": 60, **settings}
    at_once = spoken(target, "none", draft=target.with_new_cache(), **options)
    assert len(grown) > 8
    assert sum(len(tokens) - 1 for tokens, *_ in at_once[0]) > 40
    level_by_level(monkeypatch)
    grown.clear()
    same_up_to_rounding(spoken(target, "none", draft=target.with_new_cache(), **options), at_once)
    assert not grown


def test_what_one_way_learns_the_other_knows(target, monkeypatch, grown):
    """Every second round is grown level by level."""
    alone = spoken(target, "suffix+hydra")
    assert len(grown) > 20
    grow, turn = Merge.grow_at_once, itertools.cycle([True, False])
    monkeypatch.setattr(
        Merge, "grow_at_once", lambda self, context, plan: grow(self, context, plan) if next(turn) else None
    )
    assert spoken(target, "suffix+hydra") == alone


def test_tokens_that_the_network_does_not_know_are_told_to_it(target, monkeypatch, grown):
    known = spoken(target, "suffix+hydra")
    monkeypatch.setattr(loading, "_KNOWN_TOKENS", 1)
    grown.clear()
    assert spoken(target, "suffix+hydra") == known
    assert len(grown) > 20


@pytest.mark.parametrize("of", ["suffix+hydra", "hydra(tokens=4)+hydra"])
@pytest.mark.parametrize("settings", SAMPLINGS, ids=lambda settings: " ".join(settings))
def test_with_these_sampling_settings_too_both_ways_grow_the_same_trees(target, monkeypatch, grown, settings, of):
    at_once = spoken(target, of, tokens=60, **settings)
    assert len(grown) > 20
    assert sum(len(tokens) - 1 for tokens, *_ in at_once[0]) > 50
    level_by_level(monkeypatch)
    grown.clear()
    same_up_to_rounding(spoken(target, of, tokens=60, **settings), at_once)
    assert not grown


@pytest.mark.parametrize("settings", SAMPLINGS, ids=lambda settings: " ".join(settings))
def test_these_sampling_settings_change_which_tokens_are_guessed(target, settings):
    """So that the test above sees whether C heeds them."""
    (tree, *_), (plain, *_) = (
        spoken(target, "hydra", (Budget(40, 9, 8),), tokens=1, **chosen)[0] for chosen in (settings, {})
    )
    assert without_claims(tree) != without_claims(plain)


def test_a_rule_that_looks_at_the_law_behind_guesses_has_trees_grown_level_by_level(target, grown):
    context, plan = Context(list(TEXT), len(TEXT), target.vocab_size), GrowthPlan(Budget(2, 2, 2))
    settings = Settings().but({"drafter": "merge", "method_options": {"merge.of": "suffix+hydra"}})
    resources = trained_resources(trained=TrainedDrafters("tiny", (tiny_trained("hydra", target),)))
    drafter = assemble(settings, target, None, resources=resources).drafter
    drafter.start(context.history)
    context.wants_q = True
    assert drafter.grow_at_once(context, plan) is None
    assert not grown
    context.wants_q = False
    assert drafter.grow_at_once(context, plan) is not None


@pytest.mark.parametrize("rows", [10, 16])
def test_a_tree_of_which_too_much_is_read_grows_level_by_level(target, grown, monkeypatch, rows):
    """There are more nodes than rows, or the search finds no room for one more row."""
    budgets = (Budget(16, 9, 8), Budget(2, 2, 2))
    known = spoken(target, "suffix+hydra", budgets, tokens=20)
    before = sum(len(tree) == 16 for tree in grown)
    grown.clear()
    monkeypatch.setattr(compiled_search, "_MOST_ROWS", rows)
    trees, text = spoken(target, "suffix+hydra", budgets, tokens=20)
    assert sum(len(tree) == 16 for tree in grown) < before
    assert [round[:3] for round in trees] == [round[:3] for round in known[0]]
    assert text == known[1]
    assert sum(passes for *_, passes in trees) >= sum(passes for *_, passes in known[0])


def test_states_that_are_no_numbers_are_refused_by_name(target, monkeypatch):
    monkeypatch.setattr(TextInputs, "for_c", lambda self, position: torch.full((target.hidden_size,), torch.nan))
    with pytest.raises(ModelError, match="not numbers"):
        spoken(target, "suffix+hydra", (Budget(6, 3, 3),))
