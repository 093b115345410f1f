"""Two draft models whose trees are one: what they cover, what each reads, how the text is distributed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from contracts.kit import (
    PROMPT,
    Always,
    Letters,
    V,
    collect,
    context_for,
    converse,
    fixed_speculator,
    make_policy,
    make_rule,
    plain_text,
    scripted_draft,
    scripted_target,
    speak,
    target_says,
)
from contracts.text_laws import exact_laws, law_p_values
from test_several_and_fuse import grown, paths_in

from specchat.acceptance import ACCEPTANCE_RULES
from specchat.core.budget import Budget
from specchat.core.sampling import Sampling
from specchat.core.tree import ROOT
from specchat.decoding.combinations import check_settings
from specchat.decoding.speculate import Speculator
from specchat.drafters.choice import choose
from specchat.drafters.parts import FurtherDraft, PairResources, Parts
from specchat.errors import CombinationError
from specchat.settings import Settings
from specchat.trees import TREE_POLICIES

NAMES = ("draft_model 1", "draft_model 2")
BOTH = "draft_model+draft_model(model=two)"


def models_of(vocab_size=V):
    return scripted_draft(vocab_size, noise=1.5), scripted_draft(vocab_size, noise=2.5)


def drafting(name, models=None, vocab_size=V, **options):
    """A drafter of a pair with two draft models, and these models."""
    one, two = models or models_of(vocab_size)
    given = {"several.of": BOTH, **{key.replace("__", "."): value for key, value in options.items()}}
    resources = PairResources(draft_name="one", further={"two": FurtherDraft(two)})
    parts = Parts(scripted_target(vocab_size), one, resources=resources)
    return parts.build(choose(name, Settings().but({"method_options": given})))


def each_alone():
    return [drafting("draft_model", draft_model__model=name) for name in ("one", "two")]


def rounds_with(drafter, count=200, budget=Budget(30, 3, 4), policy="expansion"):  # noqa: B008
    text, rounds = speak(fixed_speculator(scripted_target(), drafter, policy, budget), count, context_for())
    assert text == plain_text(scripted_target(), count)
    return rounds


def accepted(rounds):
    return sum(round.accepted for round in rounds) / len(rounds)


def test_two_models_cover_more_than_either_and_their_tree_is_smaller_than_both_together():
    wide = Budget(200, 2, 8)
    policies = {"policy": "expansion", "budget": wide}
    both = rounds_with(drafting("several"), **policies)
    alone = [rounds_with(drafter, **policies) for drafter in each_alone()]
    assert accepted(both) >= max(map(accepted, alone))
    context, policy = context_for(), make_policy(TREE_POLICIES["expansion"], widths="2,2")

    def tree_of(drafter):
        drafter.start(context.history)
        return paths_in(policy.grow(drafter, context, wide))

    parts = [tree_of(drafter) for drafter in each_alone()]
    assert parts[0] != parts[1]
    merged = paths_in(make_policy(TREE_POLICIES["expansion"], widths="8,8").grow(drafting("several"), context, wide))
    assert parts[0] | parts[1] <= merged
    assert len(parts[0] | parts[1]) < len(parts[0]) + len(parts[1])


def test_every_model_reads_its_own_tree_alone():
    models = models_of()
    drafter, context = drafting("several", models), context_for()
    drafter.start(context.history)
    before = [model.counters.rows + len(context.history) - 1 for model in models]  # with the prompt
    tree = grown(drafter, Budget(500, 3, 2))
    inner = [node for node in range(len(tree)) if tree.depths[node] < 3 and tree.draws(node)]
    own = dict.fromkeys(NAMES, 1)  # the root
    for node in inner:
        if node != ROOT:
            (proposer,) = {d.guess.proposer for d in tree.draws(tree.parents[node]) if d.child == node}
            for name in proposer.split("+"):
                own[name] += 1
    read = [model.counters.rows - rows for model, rows in zip(models, before, strict=True)]
    assert read == [own[name] for name in NAMES]
    assert sum(read) < 2 * len(inner)


@pytest.mark.parametrize("rule", ["multi_step", "recursive"])
def test_draws_of_two_models_leave_the_text_distributed_as_the_targets(rule):
    small, warm, prompt = 5, Sampling(temperature=0.8), [1, 3, 1]
    wanted = Settings().but(
        {"drafter": "several", "temperature": 0.8, "rule": rule, "method_options": {"several.of": BOTH}}
    )
    check_settings(wanted, True, draft_models={"one": True, "two": True})
    drafter = drafting("several", vocab_size=small)
    policy = make_policy(TREE_POLICIES["expansion"], widths="4,2")
    parts = (policy, make_rule(ACCEPTANCE_RULES[rule]), Always(Budget(12, 2, 4)))
    target, texts, proposers = scripted_target(small), [], set()
    for seed in range(400):
        text, rounds = speak(Speculator(target, drafter, *parts), 3, context_for(warm, seed, small, prompt))
        texts.append(text)
        proposers |= {draw.guess.proposer for draw in rounds[0].tree.draws(ROOT)}
    assert proposers == set(NAMES), "both have a part of the width"
    exact = exact_laws(target_says(small), prompt, 3, warm, small)
    assert min(law_p_values(texts, exact).values()) > 1e-4


# ------------------------------------------------------------------------------------------ which model is used

WRAPPERS = {
    "several": BOTH,
    "merge": "suffix+draft_model(model=two)+draft_model",
    "cascade": "suffix,draft_model(model=two)",
    "fuse": "draft_model(model=two)",
    "sparse_context": "draft_model(model=two)",
}
KEYS = {"fuse": "fuse.draft", "sparse_context": "sparse_context.below"}


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("drafter", WRAPPERS)
def test_wrappers_draft_with_the_models_they_name_and_the_text_stays_the_targets(drafter, temperature):
    one, two = models_of()
    resources = PairResources(Letters(), Letters(), draft_name="one", further={"two": FurtherDraft(two, None)})
    resources = replace(resources, draft_vocabulary=resources.vocabulary)
    options = {KEYS.get(drafter, f"{drafter}.of"): WRAPPERS[drafter]}
    shape = {"policy": "expansion", "controller": "fixed", "nodes": 12, "depth": 3, "width": 2, "max_tokens": 24}
    settings = {**shape, "drafter": drafter, "method_options": options, "temperature": temperature}
    said = collect(converse(scripted_target(), one, None, resources, **settings).reply(PROMPT, 7))
    plain = collect(
        converse(scripted_target(), controller="off", max_tokens=24, temperature=temperature).reply(PROMPT, 7)
    )
    assert said.tokens == plain.tokens
    assert two.counters.passes > 0
    assert (one.counters.passes > 0) == ("draft_model" in WRAPPERS[drafter].replace("draft_model(", ""))


def test_a_model_that_two_members_use_has_a_cache_for_each():
    one, two = models_of()
    of = "draft_model(model=two)+draft_model(model=two drawing=top)+draft_model+draft_model(model=one drawing=top)"
    first, second, third, fourth = (member._model for member in drafting("several", (one, two), several__of=of).members)
    assert (first, third) == (two, one)
    assert len({*map(id, (first, second, third, fourth))}) == 4


def test_a_draft_model_that_the_pair_has_not_is_refused_by_name():
    settings = Settings().but({"drafter": "several", "method_options": {"several.of": "draft_model(model=towards)"}})
    with pytest.raises(CombinationError, match=r"draft_model.model = 'towards' is not a draft model of pair 'smol'"):
        check_settings(settings, True, draft_models={"one": True, "two": True})


def test_tokens_are_asked_of_the_models_that_are_used():
    models = {"one": True, "two": False}
    settings = Settings().but({"drafter": "several", "method_options": {"several.of": BOTH}})
    with pytest.raises(
        CombinationError, match=r"'draft_model' needs .* 'two', which has other tokens; .* 'cross_vocabulary'"
    ):
        check_settings(settings, True, draft_models=models)
    mixed = {"method_options": {"several.of": "draft_model+cross_vocabulary(model=two)"}}
    check_settings(settings.but(mixed), True, draft_models=models)


def test_a_model_with_tokens_of_its_own_translates_beside_one_without():
    one, two = models_of()
    resources = PairResources(Letters(), draft_name="one", further={"two": FurtherDraft(two, Letters())})
    assert resources.draft_models == {"one": True, "two": False}
    parts = Parts(scripted_target(), one, resources=resources)
    wanted = {"several.of": "draft_model+cross_vocabulary(model=two)+cross_vocabulary"}
    _, other, same = parts.build(choose("several", Settings().but({"method_options": wanted}))).members
    assert (other._translation.same, same._translation.same) == (False, True)
    assert other._model is two
