"""What fits with a rule that judges by draft probabilities is computed from what drafters and policies can do."""

from __future__ import annotations

from functools import cache

import pytest
from contracts.kit import converse, scripted_draft, scripted_target
from contracts.tiny_networks import all_tiny_trained, tiny_resources
from rows import each_row

from specchat.acceptance import ACCEPTANCE_RULES
from specchat.decoding.assemble import assemble
from specchat.decoding.combinations import check_settings, keeps_draws, losslessness
from specchat.decoding.kept_parts import DrafterCache
from specchat.drafters import DRAFTERS
from specchat.drafters.choice import choose_drafter
from specchat.errors import CombinationError, UsageError
from specchat.models.draft_heads import methods
from specchat.settings import Settings
from specchat.trees import TREE_POLICIES
from specchat.trees.given_shapes import Chain

RULES = ["multi_step", "recursive", "block", "traversal"]
PQ = pytest.mark.parametrize("rule", RULES)
BRANCHES = pytest.mark.parametrize(("rule", "alone"), [("block", "multi_step"), ("traversal", "recursive")])
TRAINED = [name for name in methods("head", "denoiser") if name in DRAFTERS]
DRAWERS = [
    *TRAINED,
    "draft_model",
    "early_exit",
    "layer_skip",
    "none",
    "pruned",
    "retrieved_context",
    "shipped_mtp",
    "sparse_context",
]


def settings(**changes):
    return Settings().but({"temperature": 0.8, **changes})


@PQ
@each_row("drafter", sorted(set(DRAFTERS) - set(DRAWERS)))
def test_drafters_that_only_propose_points_are_refused_with_the_nearest_that_works(rule, drafter):
    words = f"rule '{rule}' .* drafter '{drafter}' .* nearest that works: rule 'follow', or drafter 'draft_model'"
    with pytest.raises(CombinationError, match=words):
        check_settings(
            settings(rule=rule, drafter=drafter), has_draft_model=True, trained=all_tiny_trained(scripted_target())
        )


KINDS = {rule: ACCEPTANCE_RULES[rule].load().wanted for rule in RULES}
KEPT = [(rule, name) for rule in KINDS for name in TREE_POLICIES if keeps_draws(TREE_POLICIES[name], KINDS[rule])]
WITHOUT_REPLACEMENT_ONLY = ["rsd_c", "rsd_s", "graph"]
LOST = [(rule, name) for rule in KINDS for name in TREE_POLICIES if (rule, name) not in KEPT]


@cache
def pair():
    """A target, a draft model, what else they have, and the drafters that were built for them last."""
    target = scripted_target()
    return target, scripted_draft(), tiny_resources(target), DrafterCache()


@each_row("drafter", DRAWERS)
@each_row(("rule", "policy"), KEPT)
def test_drafters_that_draw_fit_with_every_policy_that_keeps_their_draws(rule, drafter, policy):
    chosen = settings(rule=rule, drafter=drafter, policy=policy)
    target, draft, resources, drafters = pair()
    check_settings(chosen, has_draft_model=True, trained=resources.trained)
    assemble(chosen, target, draft, drafters, resources=resources)
    assert losslessness(chosen).lossless
    assert "distributed exactly" in losslessness(chosen).reason


@pytest.mark.parametrize(("rule", "policy"), LOST)
def test_a_policy_that_does_not_keep_draws_is_refused_with_those_that_do(rule, policy):
    without_replacement = rule in ("multi_step", "block") and policy in WITHOUT_REPLACEMENT_ONLY
    why = "takes draws without replacement alone" if without_replacement else "cannot place such draws .*"
    with pytest.raises(CombinationError, match=rf"policy '{policy}' {why}; nearest .* or policy 'chain'"):
        check_settings(settings(rule=rule, drafter="draft_model", policy=policy), has_draft_model=True)
    check_settings(settings(drafter="draft_model", policy=policy), has_draft_model=True)


def test_which_policies_keep_which_draws():
    assert [name for rule, name in LOST if rule == "multi_step"] == ["eagle2", *WITHOUT_REPLACEMENT_ONLY]
    assert [name for rule, name in LOST if rule == "recursive"] == ["eagle2"]


@PQ
@pytest.mark.parametrize("drawing", ["top", "coupled"])
def test_a_draft_model_that_is_forced_to_points_is_refused(rule, drawing):
    chosen = settings(rule=rule, drafter="draft_model", method_options={"draft_model.drawing": drawing})
    with pytest.raises(CombinationError, match="'draft_model' with its options proposes points"):
        check_settings(chosen, has_draft_model=True)


@BRANCHES
@pytest.mark.parametrize("drafter", ["merge", "several"])
def test_points_beside_draws_are_refused_where_whole_branches_are_judged(rule, alone, drafter):
    mixing = {"rule": rule, "drafter": drafter, "method_options": {f"{drafter}.of": "draft_model,suffix"}}
    with pytest.raises(CombinationError, match=f"nearest that works: rule '{alone}', or drafter 'cascade'"):
        check_settings(settings(**mixing), has_draft_model=True)
    check_settings(settings(**{**mixing, "rule": alone}), has_draft_model=True)
    apart = {"rule": rule, "drafter": "cascade", "method_options": {"cascade.of": "suffix,draft_model"}}
    check_settings(settings(**apart), has_draft_model=True)
    both_draw = {f"{drafter}.of": "draft_model,early_exit"}
    check_settings(settings(**{**mixing, "method_options": both_draw}), has_draft_model=True)


@pytest.mark.parametrize("rule", ["multi_step", "recursive"])
def test_a_merge_draws_if_a_member_draws(rule):
    merge = {"rule": rule, "drafter": "merge"}
    check_settings(settings(**merge, method_options={"merge.of": "suffix,draft_model"}), has_draft_model=True)
    forced = {"merge.of": "suffix,draft_model", "draft_model.drawing": "coupled"}
    with pytest.raises(CombinationError):
        check_settings(settings(**merge, method_options=forced), has_draft_model=True)


@PQ
def test_at_temperature_0_and_without_speculation_everything_fits(rule):
    check_settings(Settings().but({"rule": rule, "drafter": "suffix"}), has_draft_model=False)
    check_settings(settings(rule=rule, drafter="suffix", controller="off"), has_draft_model=False)


@PQ
def test_a_policy_that_says_nothing_about_draws_is_refused(rule, monkeypatch):
    monkeypatch.delattr(Chain, "keeps_draws")
    with pytest.raises(CombinationError, match=r"policy 'chain' cannot place such draws .* or policy 'expansion'"):
        check_settings(settings(rule=rule, drafter="draft_model", policy="chain"), has_draft_model=True)
    check_settings(settings(drafter="draft_model", policy="chain"), has_draft_model=True)


@PQ
def test_a_running_conversation_refuses_the_change_and_keeps_what_it_had(rule):
    conversation = converse(scripted_target(), scripted_draft(), drafter="suffix", temperature=0.0, rule=rule)
    before = conversation.settings
    with pytest.raises(CombinationError):
        conversation.change(before.but({"temperature": 0.8}))
    assert conversation.settings is before
    conversation.change(before.but({"temperature": 0.8, "drafter": "draft_model"}))


def test_a_merge_of_a_draft_model_needs_one():
    chosen = settings(drafter="merge", method_options={"merge.of": "suffix,draft_model"})
    with pytest.raises(CombinationError, match="'draft_model' needs a draft model"):
        check_settings(chosen, has_draft_model=False)


def test_a_merge_of_unknown_drafters_is_refused_with_the_nearest():
    with pytest.raises(UsageError, match="did you mean 'token_recycling'"):
        check_settings(
            settings(drafter="merge", method_options={"merge.of": "suffix,token_recycle"}), has_draft_model=False
        )


def test_a_merge_is_another_one_when_the_options_of_a_member_change():
    first = choose_drafter(settings(drafter="merge"))
    assert first == choose_drafter(settings(drafter="merge", width=7))
    assert first != choose_drafter(settings(drafter="merge", method_options={"suffix.factor": 2.0}))
    assert first == choose_drafter(settings(drafter="merge", method_options={"prompt_lookup.max_ngram": 2}))


def test_every_rule_that_wants_draws_is_in_these_tests():
    wanting = {name for name, method in ACCEPTANCE_RULES.items() if method.load().wanted.value != "point"}
    assert wanting == {*RULES, "lenient", "transfer"}


@pytest.mark.parametrize("rule", ["lenient", "transfer"])
def test_lossy_rules_that_weigh_draws_are_refused_where_there_are_none(rule):
    words = f"rule '{rule}' .* drafter 'suffix' .* nearest that works: rule 'follow', or drafter 'draft_model'"
    with pytest.raises(CombinationError, match=words):
        check_settings(settings(rule=rule, drafter="suffix"), has_draft_model=True)
    with pytest.raises(CombinationError, match="policy 'eagle2' cannot place such draws"):
        check_settings(settings(rule=rule, drafter="draft_model", policy="eagle2"), has_draft_model=True)
    check_settings(settings(rule=rule, drafter="draft_model"), has_draft_model=True)


def test_transfer_is_refused_at_temperature_0_where_laws_are_points():
    with pytest.raises(CombinationError, match="nearest that works: a temperature above 0, or rule 'follow'"):
        check_settings(Settings().but({"rule": "transfer", "drafter": "draft_model"}), has_draft_model=True)
    check_settings(Settings().but({"rule": "lenient", "drafter": "draft_model"}), has_draft_model=True)


@pytest.mark.parametrize("rule", [name for name, method in ACCEPTANCE_RULES.items() if method.lossless == "no"])
def test_a_lossy_rule_is_said_to_be_lossy_and_is_no_default(rule):
    told = losslessness(Settings().but({"rule": rule}))
    assert not told.lossless
    assert "changes the target's distribution on purpose" in told.reason
    assert Settings().rule == "follow"
