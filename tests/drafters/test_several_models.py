"""Two draft models whose trees are one: what they cover, what each reads, how the text is distributed."""

from __future__ import annotations

import pytest
from contracts.kit import (
    Always,
    V,
    context_for,
    make_policy,
    make_rule,
    plain_text,
    scripted_draft,
    scripted_target,
    speak,
    target_says,
)
from contracts.text_laws import exact_laws, law_p_values
from test_several_and_fuse import grown, paths_in, several

from specchat.acceptance import ACCEPTANCE_RULES
from specchat.core.budget import Budget
from specchat.core.sampling import Sampling
from specchat.core.tree import ROOT, DrawKind
from specchat.decoding.speculate import Speculator
from specchat.drafters.draft_model import DraftModel
from specchat.drafters.options import DraftModelOptions
from specchat.drafters.parts import Parts
from specchat.trees import TREE_POLICIES


class Named:
    """A draft model's drafter with another name and noise of its own, as a second model of a pair has."""

    taps: tuple = ()
    text_tap = None

    def __init__(self, name, vocab_size, **law):
        self._name = name
        self._inner = DraftModel(
            DraftModelOptions(), Parts(scripted_target(vocab_size), scripted_draft(vocab_size, **law))
        )
        self.model = self._inner._model

    @property
    def passes(self):
        return self._inner.passes

    def start(self, history):
        self._inner.start(history)

    def propose(self, tree, frontier, width, context):
        noise, context.noise = context.noise, context.noise.child(self._name)
        if context.wanted is DrawKind.POINT:
            context.noise = noise  # coupled draws share the target's
        try:
            said = self._inner.propose(tree, frontier, width, context)
        finally:
            context.noise = noise
        return [[guess._replace(proposer=self._name) for guess in guesses] for guesses in said]

    def riders(self, tree):
        return ()

    def observe(self, round):
        self._inner.observe(round)

    def close(self):
        self._inner.close()


def pair_of_models(vocab_size=V):
    return Named("one", vocab_size, noise=1.5), Named("two", vocab_size, noise=2.5)


def rounds_with(drafter, count=200, budget=Budget(30, 3, 4), policy="expansion"):  # noqa: B008
    parts = (make_policy(TREE_POLICIES[policy]), make_rule(ACCEPTANCE_RULES["follow"]), Always(budget))
    text, rounds = speak(Speculator(scripted_target(), drafter, *parts), count, context_for())
    assert text == plain_text(scripted_target(), count)
    return rounds


def accepted(rounds):
    return sum(round.accepted for round in rounds) / len(rounds)


def test_two_models_cover_more_than_either_and_their_tree_is_smaller_than_both_together():
    one, two = pair_of_models()
    wide = Budget(200, 2, 8)
    policies = {"policy": "expansion", "budget": wide}
    both = rounds_with(several(one, two), **policies)
    alone = [rounds_with(model, **policies) for model in pair_of_models()]
    assert accepted(both) >= max(map(accepted, alone))
    context, policy = context_for(), make_policy(TREE_POLICIES["expansion"], widths="2,2")

    def tree_of(drafter):
        drafter.start(context.history)
        return paths_in(policy.grow(drafter, context, wide))

    parts = [tree_of(model) for model in pair_of_models()]
    merged = paths_in(
        make_policy(TREE_POLICIES["expansion"], widths="8,8").grow(several(*pair_of_models()), context, wide)
    )
    assert parts[0] | parts[1] <= merged
    assert len(parts[0] | parts[1]) < len(parts[0]) + len(parts[1])


def test_every_model_reads_its_own_tree_alone():
    one, two = pair_of_models()
    drafter, context = several(one, two), context_for()
    drafter.start(context.history)
    before = [member.model.counters.rows + len(context.history) - 1 for member in (one, two)]  # with the prompt
    tree = grown(drafter, Budget(500, 3, 2))
    inner = [node for node in range(len(tree)) if tree.depths[node] < 3 and tree.draws(node)]
    own = dict.fromkeys(("one", "two"), 1)  # the root
    for node in inner:
        if node != ROOT:
            (proposer,) = {d.guess.proposer for d in tree.draws(tree.parents[node]) if d.child == node}
            for name in proposer.split("+"):
                own[name] += 1
    read = [member.model.counters.rows - rows for member, rows in zip((one, two), before, strict=True)]
    assert read == [own["one"], own["two"]]
    assert sum(read) < 2 * len(inner)


@pytest.mark.parametrize("rule", ["multi_step", "recursive"])
def test_draws_of_two_models_leave_the_text_distributed_as_the_targets(rule):
    small, warm, prompt = 5, Sampling(temperature=0.8), [1, 3, 1]
    drafter = several(*pair_of_models(small))
    policy = make_policy(TREE_POLICIES["expansion"], widths="4,2")
    parts = (policy, make_rule(ACCEPTANCE_RULES[rule]), Always(Budget(12, 2, 4)))
    target, texts, proposers = scripted_target(small), [], set()
    for seed in range(1000):
        text, rounds = speak(Speculator(target, drafter, *parts), 3, context_for(warm, seed, small, prompt))
        texts.append(text)
        proposers |= {draw.guess.proposer for draw in rounds[0].tree.draws(ROOT)}
    assert proposers == {"one", "two"}, "both have a part of the width"
    exact = exact_laws(target_says(small), prompt, 3, warm, small)
    assert min(law_p_values(texts, exact).values()) > 1e-4
