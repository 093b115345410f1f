"""Whole replies under the p/q rules are distributed as the target's, and broken rules are caught at it."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from contracts.kit import (
    Always,
    context_for,
    draft_says,
    make_policy,
    make_rule,
    plain_text,
    scripted_draft,
    scripted_target,
    speak,
    target_says,
)
from contracts.pass_requests import LookedInto
from contracts.proposing import Proposing
from contracts.text_laws import exact_laws, law_p_values

from specchat.acceptance import ACCEPTANCE_RULES
from specchat.acceptance.recursion import trials
from specchat.core.budget import Budget
from specchat.core.noise import Stream
from specchat.core.round import Reason
from specchat.core.sampling import Sampling
from specchat.core.seams import TreePolicy
from specchat.core.tree import ROOT, DrawKind, Guess, TokenTree
from specchat.decoding.speculate import Speculator
from specchat.drafters import DRAFTERS
from specchat.drafters.choice import choose
from specchat.drafters.parts import Parts
from specchat.models.backends.scripted import ScriptedModel
from specchat.settings import Settings
from specchat.trees import TREE_POLICIES

SMALL = 5
WARM = Sampling(temperature=0.8)
SAMPLES = 400
"""Enough for `test_a_q_that_was_not_sampled_from_is_caught`, with a p-value of 4e-13."""
PROMPT = [1, 3, 1]
RULES = ["multi_step", "recursive", "block", "traversal"]
PQ = pytest.mark.parametrize("rule", RULES)


def draft_model(**options):
    method = DRAFTERS["draft_model"]
    return method.load()(method.make_options(options), Parts(scripted_target(SMALL), scripted_draft(SMALL)))


def merged():
    settings = Settings().but({"method_options": {"merge.of": "draft_model,suffix"}})
    return Parts(scripted_target(SMALL), scripted_draft(SMALL)).build(choose("merge", settings))


def samples(rule, policy, drafter, on_layer=None, count=SAMPLES, budget=Budget(6, 2, 3)):  # noqa: B008
    target = scripted_target(SMALL)
    policy = LookedInto(make_policy(TREE_POLICIES[policy]), on_layer)
    parts = (policy, make_rule(ACCEPTANCE_RULES[rule]), Always(budget))
    texts, rounds = [], []
    for seed in range(count):
        context = context_for(WARM, seed, SMALL, PROMPT)
        text, done = speak(Speculator(target, drafter, *parts), 3, context)
        texts.append(text)
        rounds += done
    return texts, rounds


def exact():
    return exact_laws(target_says(SMALL), PROMPT, 3, WARM, SMALL)


@pytest.mark.parametrize("rule", ["recursive", "traversal"])
def test_texts_of_a_policy_with_noise_of_its_own_are_distributed_as_the_targets(rule):
    """Every other policy with its draws and coins enumerated: tests/acceptance/test_policy_laws.py."""
    texts, rounds = samples(rule, "rsd_s", draft_model())
    assert min(law_p_values(texts, exact()).values()) > 1e-4
    kinds = {draw.guess.kind for round in rounds for draw in round.tree.draws(ROOT)}
    assert kinds == {make_rule(ACCEPTANCE_RULES[rule]).wanted}
    assert sum(round.accepted for round in rounds) > 0.2 * SAMPLES


# ------------------------------------------------------------------------------------- budgets with prices

PRICED = Budget(6, 2, 3, prices=(0.1, 0.2, 0.3, 0.4, 0.5, 0.6), pass_price=0.3)
TARGET = torch.tensor([0.50, 0.04, 0.23, 0.23]).log()
DRAFT = torch.tensor([0.40, 0.34, 0.13, 0.13]).log()
"""What both models say after every text; they disagree about token 1."""


class Kind(TreePolicy):
    """A policy under which drafters make draws of one kind, whatever the rule wants."""

    def __init__(self, kind):
        self._policy, self._kind = make_policy(TREE_POLICIES["best_first"]), kind

    def grow(self, drafter, context, budget):
        context.wanted = self._kind
        return self._policy.grow(drafter, context, budget)


class PricedByToken(Kind):
    """Wrong on purpose: a draw loses its place where its own token is less likely than the second price."""

    def grow(self, drafter, context, budget):
        grown = super().grow(drafter, context, dataclasses.replace(budget, prices=()))
        paying, place = TokenTree(context.root, len(TARGET)), {ROOT: ROOT}
        for parent in range(len(grown)):
            for draw in grown.draws(parent) if parent in place else ():
                if draw.guess.logprob >= math.log(budget.price(2)):
                    place[draw.child] = paying.add(place[parent], draw.guess)
        return paying.freeze()


def priced(rule, policy, count):
    """How plausible the texts of two tokens under prices are, and the rounds."""
    sampling, vocab_size, texts, rounds = Sampling(temperature=1.0), len(TARGET), [], []
    target, draft = (ScriptedModel(vocab_size, lambda text, law=law: law) for law in (TARGET, DRAFT))
    drafter = DRAFTERS["draft_model"].load()(DRAFTERS["draft_model"].options(), Parts(target, draft))
    parts = (drafter, policy, make_rule(ACCEPTANCE_RULES[rule]), Always(PRICED))
    for seed in range(count):
        text, done = speak(Speculator(target, *parts), 2, context_for(sampling, seed, vocab_size, PROMPT))
        texts.append(text)
        rounds += done
    laws = exact_laws(lambda text: TARGET, PROMPT, 2, sampling, vocab_size)
    return min(law_p_values(texts, laws).values()), rounds


FITTING = pytest.mark.parametrize(
    ("rule", "kind"),
    [*(("follow", kind) for kind in DrawKind), *((rule, ACCEPTANCE_RULES[rule].load().wanted) for rule in RULES)],
)
"""Every rule with every kind of draws, enumerated: tests/acceptance/test_policy_laws.py."""


@FITTING
def test_texts_under_prices_are_distributed_as_the_targets(rule, kind):
    """As under the default controller, which prices nodes: how many draws stay differs from round to round."""
    plausible, rounds = priced(rule, Kind(kind), 200)
    assert plausible > 1e-4
    assert {draw.guess.kind for round in rounds for draw in round.tree.draws(ROOT)} == {kind}
    sizes = {round.tree.drafted for round in rounds}
    assert max(sizes) < PRICED.nodes, "prices decide"
    assert len(sizes) > 1 or kind is DrawKind.POINT, "and not alike in all rounds: both laws are the same everywhere"
    assert sum(round.accepted for round in rounds) > 0.2 * 200


@FITTING
def test_prices_that_look_at_a_draws_own_token_are_caught(rule, kind):
    """But points may be chosen by their tokens, and `follow` is right about any tree."""
    plausible, _ = priced(rule, PricedByToken(kind), 150)
    assert plausible > 1e-4 if rule == "follow" or kind is DrawKind.POINT else plausible < 1e-7


@pytest.mark.parametrize("rule", ["multi_step", "recursive"])
def test_texts_with_points_among_the_draws_are_distributed_as_the_targets(rule):
    texts, rounds = samples(rule, "best_first", merged())
    assert min(law_p_values(texts, exact()).values()) > 1e-4
    kinds = {draw.guess.kind for round in rounds for n in range(len(round.tree)) for draw in round.tree.draws(n)}
    assert kinds == {make_rule(ACCEPTANCE_RULES[rule]).wanted, DrawKind.POINT}


@PQ
def test_pruning_by_token_in_the_middle_of_the_pass_keeps_the_law(rule):
    def prune(layer, hidden, nodes):
        return [node for place, node in enumerate(nodes) if node == ROOT or int(hidden[place].argmax()) != 2]

    texts, rounds = samples(rule, "expansion", draft_model(), on_layer=prune)
    assert min(law_p_values(texts, exact()).values()) > 1e-4
    assert any(Reason.PRUNED in round.verdict.reasons for round in rounds)
    kinds = {draw.guess.kind for round in rounds for draw in round.tree.draws(ROOT)}
    assert kinds == {make_rule(ACCEPTANCE_RULES[rule]).wanted}
    ended_at_a_dead_child = [
        round for round in rounds if (n := round.tree.child(ROOT, round.emitted[0])) and n in round.reading.pruned
    ]
    assert ended_at_a_dead_child, "a pruned draw was the emitted token: the case the argument is about"


def liar(kind: DrawKind):
    """Draws from the draft's law and calls it by another: whatever is distributed as it says, this is not."""

    def guesses(tree, node, width, context):
        text = [*context.history, *tree.path_tokens(node)]
        law = context.law_after(tree, node, draft_says(SMALL)(text))
        q = law.dense(SMALL)
        wrong = q.flip(0)
        token = law.draw(context.noise, Stream.DRAFT, context.position(tree, node), (context.round, node))
        return [Guess(token, kind, wrong, float(wrong[token].log()), "liar")]

    return Proposing(guesses)


@PQ
def test_a_q_that_was_not_sampled_from_is_caught(rule):
    texts, _ = samples(rule, "chain", liar(DrawKind.IID))
    assert min(law_p_values(texts, exact()).values()) < 1e-9


@PQ
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(repetition_penalty=1.4)], ids=["greedy", "penalised"])
def test_at_temperature_0_they_write_what_the_target_writes(rule, sampling):
    context = context_for(sampling, 7, SMALL, PROMPT)
    parts = (make_policy(TREE_POLICIES["expansion"]), make_rule(ACCEPTANCE_RULES[rule]), Always(Budget(6, 3, 2)))
    text, rounds = speak(Speculator(scripted_target(SMALL), draft_model(), *parts), 30, context)
    plain = context_for(sampling, 7, SMALL, PROMPT)
    alone = Always(Budget(0, 0, 0))
    rest = (make_policy(TREE_POLICIES["chain"]), make_rule(ACCEPTANCE_RULES["follow"]), alone)
    assert text == speak(Speculator(scripted_target(SMALL), draft_model(), *rest), 30, plain)[0]
    assert sum(round.accepted for round in rounds) > 0


@PQ
def test_a_tree_of_points_gets_the_very_text_of_follow(rule):
    def points(tree, node, width, context):
        return [Guess(token) for token in range(min(width, SMALL))]

    def text(name):
        parts = (make_policy(TREE_POLICIES["expansion"]), make_rule(ACCEPTANCE_RULES[name]), Always(Budget(8, 3, 3)))
        return speak(Speculator(scripted_target(SMALL), Proposing(points), *parts), 40, context_for(WARM, 3, SMALL))

    (ours, rounds), (theirs, _) = text(rule), text("follow")
    assert ours == theirs == plain_text(scripted_target(SMALL), 40, WARM, 3)
    assert any(round.accepted for round in rounds)


def test_every_draw_of_every_round_has_a_coin_of_its_own():
    """The same tree judged in many rounds: a coin that came from somewhere else would fall the same way each time."""
    target, rule = scripted_target(SMALL), make_rule(ACCEPTANCE_RULES["multi_step"])
    tree = TokenTree(PROMPT[-1], SMALL)
    p = context_for(WARM, 3, SMALL, PROMPT).law_after(tree, ROOT, target_says(SMALL)(PROMPT)).dense(SMALL)
    token = int(p.argmin())
    q = torch.full((SMALL,), (1 - 2 * float(p[token])) / (SMALL - 1), dtype=torch.float64)
    q[token] = 2 * p[token]  # so the coin decides evenly
    tree.add(ROOT, Guess(token, DrawKind.IID, q, proposer="a"))
    tree.freeze()
    accepted = []
    for number in range(400):
        context = context_for(WARM, 3, SMALL, PROMPT)
        context.round = number
        target.prefill(context.history[:-1])
        accepted.append(bool(rule.judge(tree, target.read(tree), context).path))
    assert [trial.chance for trial in trials(p, tree.draws(ROOT))] == [0.5]
    assert abs(sum(accepted) / 400 - 0.5) < 0.1
