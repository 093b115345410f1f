"""What lossy rules accept beyond the target's own tokens, and the option with which each accepts nothing more."""

from __future__ import annotations

import math

import pytest
import torch
from contracts.kit import (
    Always,
    context_for,
    make_policy,
    plain_text,
    scripted_draft,
    scripted_target,
    speak,
    target_says,
)
from contracts.proposing import Proposing
from contracts.text_laws import exact_laws, law_p_values

from specchat.acceptance import ACCEPTANCE_RULES
from specchat.acceptance.recursion import trials
from specchat.acceptance.transfer import rest_after_rejection, transferred
from specchat.core.budget import Budget
from specchat.core.reading import HeadTensors, Reading
from specchat.core.round import Reason
from specchat.core.sampling import Sampling
from specchat.core.tree import ROOT, Draw, DrawKind, Guess, TokenTree
from specchat.decoding.speculate import Speculator
from specchat.drafters import DRAFTERS
from specchat.drafters.parts import Parts
from specchat.trees import TREE_POLICIES

SMALL = 5
WARM, GREEDY = Sampling(temperature=0.8), Sampling()


def rule(name, **options):
    method = ACCEPTANCE_RULES[name]
    return method.load()(method.make_options(options))


def reading_of(laws):
    """A reading that says these laws, one for every node."""
    logits = torch.tensor(laws, dtype=torch.float32).log()
    return Reading(tuple(range(len(laws))), HeadTensors(logits), frozenset(range(len(laws))))


def judged(made, tree, laws, sampling=None, seed=7):
    vocab_size = len(laws[0])
    context = context_for(sampling or Sampling(temperature=1.0), seed, vocab_size, [0])
    return made.judge(tree.freeze(), reading_of(laws), context)


def tree_of(paths, vocab_size=4):
    tree = TokenTree(0, vocab_size)
    for path in paths:
        node = ROOT
        for token in path:
            child = tree.child(node, token)
            node = tree.add(node, Guess(token)) if child is None else child
    return tree


def spoken(made, sampling, count=60, seed=3, policy="chain", budget=Budget(4, 4, 2)):  # noqa: B008
    """A reply by a draft model under a rule, and its rounds."""
    method = DRAFTERS["draft_model"]
    drafter = method.load()(method.options(), Parts(scripted_target(SMALL), scripted_draft(SMALL)))
    parts = (drafter, make_policy(TREE_POLICIES[policy]), made, Always(budget))
    return speak(Speculator(scripted_target(SMALL), *parts), count, context_for(sampling, seed, SMALL))


def accepted(rounds):
    return sum(round.accepted for round in rounds) / len(rounds)


# ------------------------------------------------------------------------------------------------- typical

PEAKED, FLAT = [0.7, 0.2, 0.06, 0.04], [0.25, 0.25, 0.25, 0.25]


def test_the_threshold_falls_with_the_entropy_of_the_target():
    made = rule("typical", epsilon=0.3, delta=0.3)
    for p in (PEAKED, FLAT):
        entropy = -sum(x * math.log(x) for x in p)
        expected = min(0.3, 0.3 * math.exp(-entropy))
        assert made.threshold(torch.tensor(p, dtype=torch.float64)) == pytest.approx(expected)
    assert made.threshold(torch.tensor([1.0, 0.0], dtype=torch.float64)) == pytest.approx(0.3)


def test_by_default_epsilon_caps_the_threshold_as_medusa_published_it():
    """Epsilon 0.09, delta 0.3: where the target is nearly decided epsilon is the smaller, where it is not delta."""
    options = ACCEPTANCE_RULES["typical"].make_options({})
    assert (options.epsilon, options.delta) == (0.09, 0.3)
    made = rule("typical")
    assert made.threshold(torch.tensor(PEAKED, dtype=torch.float64)) == 0.09
    assert made.threshold(torch.tensor(FLAT, dtype=torch.float64)) == pytest.approx(0.3 / 4)

    def stands(decided, token):
        return all(judged(made, tree_of([[token]]), [decided, FLAT], seed=seed).path[:1] for seed in range(40))

    decided = [0.81, 0.1, 0.085, 0.005]  # delta alone would ask for 0.16 here
    assert [stands(decided, token) for token in range(4)] == [True, True, False, False]


@pytest.mark.parametrize(("token", "stands"), [(0, True), (1, True), (2, False), (3, False)])
def test_a_guess_stands_by_its_probability_alone(token, stands):
    made = rule("typical", epsilon=0.3, delta=0.3)  # of PEAKED: 0.13
    found = [judged(made, tree_of([[token]]), [PEAKED, FLAT], seed=seed).path == (1,) for seed in range(40)]
    assert all(found) if stands else sum(found) < 15


def test_of_the_paths_that_stand_the_longest_is_taken():
    tree = tree_of([[0], [1, 0], [1, 1]])
    longer, likelier = tree.follow([1, 0]), tree.follow([0])
    verdict = judged(rule("typical"), tree, [PEAKED, FLAT, PEAKED, FLAT, FLAT])
    assert verdict.path[:2] == longer
    assert verdict.reasons[likelier[0]] is Reason.REJECTED


@pytest.mark.parametrize("name", ["typical", "rollback"])
@pytest.mark.parametrize("sampling", [GREEDY, WARM], ids=["greedy", "warm"])
def test_a_rule_that_accepts_nothing_more_writes_the_very_text_of_the_target(name, sampling):
    strict = {"typical": {"epsilon": 1.0, "delta": 1e9}, "rollback": {"distance": 0.0}}[name]
    text, rounds = spoken(rule(name, **strict), sampling)
    assert text == plain_text(scripted_target(SMALL), 60, sampling, 3)
    assert accepted(rounds) > 0


def test_at_temperature_0_typical_is_greedy():
    text, _ = spoken(rule("typical"), GREEDY, policy="expansion")
    assert text == plain_text(scripted_target(SMALL), 60, GREEDY, 3)


@pytest.mark.parametrize(
    ("name", "option", "values"),
    [
        ("typical", "delta", (0.9, 0.3, 0.01)),
        ("lenient", "lenience", (1.0, 0.5, 0.1)),
        ("rollback", "distance", (0.5, 2.0, 6.0)),
        ("transfer", "eta", (0.0, 2.0, 20.0)),
    ],
)
def test_more_is_accepted_the_further_the_option_goes(name, option, values):
    lengths = [accepted(spoken(rule(name, **{option: value}), WARM, 250)[1]) for value in values]
    assert lengths == sorted(lengths)
    assert lengths[-1] > lengths[0] + 0.3


# ---------------------------------------------------------------------------------------- lenient, transfer


@pytest.mark.parametrize(("name", "exact"), [("lenient", {"lenience": 1.0}), ("transfer", {"eta": 0.0})])
@pytest.mark.parametrize("policy", ["chain", "expansion"])
def test_without_leniency_they_are_multi_step_to_the_token(name, exact, policy):
    texts = [spoken(made, WARM, policy=policy)[0] for made in (rule(name, **exact), rule("multi_step"))]
    assert texts[0] == texts[1]
    assert texts[0] != spoken(rule(name), WARM, policy=policy)[0]


def random_law(size, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.softmax(2.0 * torch.randn(size, generator=generator, dtype=torch.float64), dim=0)


@pytest.mark.parametrize("lenience", [1.0, 0.6, 0.2])
def test_lenience_makes_no_token_likelier_than_its_probability_over_lenience(lenience):
    for seed in range(20):
        p, q = random_law(4, seed), random_law(4, 100 + seed)
        law = torch.zeros(4, dtype=torch.float64)
        for token in range(4):
            (trial,) = trials(p, [Draw(1, Guess(token, DrawKind.IID, q))], lenience)
            law[token] += q[token] * trial.chance
            law += q[token] * (1.0 - trial.chance) * trial.left
        assert float(law.sum()) == pytest.approx(1.0)
        assert bool((law <= p / lenience + 1e-12).all())
        if lenience == 1.0:
            torch.testing.assert_close(law, p)
        else:
            assert float((law - q).abs().sum()) < float((p - q).abs().sum()), "the text leans towards the draft"


def test_at_temperature_0_lenience_takes_a_guess_that_is_nearly_the_best():
    laws = [[0.5, 0.3, 0.15, 0.05], FLAT]
    for token, lenience, stands in ((1, 0.5, True), (1, 0.7, False), (2, 0.5, False), (0, 1.0, True)):
        verdict = judged(rule("lenient", lenience=lenience), tree_of([[token]]), laws, GREEDY)
        assert (verdict.path == (1,)) == stands


@pytest.mark.parametrize("seed", range(10))
def test_transfer_moves_the_target_towards_the_draft_and_no_unlikely_draft_token(seed):
    p, q = random_law(5, seed), random_law(5, 50 + seed)
    assert torch.allclose(transferred(p, q, 0.0), p)
    likely = q >= 0.1 * q.max()
    for token in range(5):
        shares = [float(transferred(p, q, eta)[token] / transferred(p, q, eta)[int(q.argmax())]) for eta in (0, 1, 4)]
        if bool(likely[token]) and q[token] - p[token] < (q - p)[int(q.argmax())]:
            assert shares == sorted(shares, reverse=True)
    ratios = transferred(p, q, 3.0) / p
    assert len({round(float(ratio), 9) for ratio, yes in zip(ratios, likely, strict=True) if not yes}) <= 1


def test_transfer_leaves_what_the_published_rule_leaves():
    p, q = torch.tensor([0.5, 0.3, 0.2]).double(), torch.tensor([0.1, 0.6, 0.3]).double()
    moved = transferred(p, q, 2.0)
    rest = torch.stack([p - q, p - moved]).max(dim=0).values.clamp(min=0.0)
    assert torch.allclose(rest_after_rejection(p, q, moved), rest / rest.sum())
    assert torch.allclose(rest_after_rejection(p, q, p), (p - q).clamp(min=0) / (p - q).clamp(min=0).sum())


def test_transfer_with_eta_0_writes_the_targets_law_and_with_more_it_does_not():
    exact = exact_laws(target_says(SMALL), [3, 0, 1], 2, WARM, SMALL)

    def least(eta, replies):
        method, texts = DRAFTERS["draft_model"], []
        drafter = method.load()(method.options(), Parts(scripted_target(SMALL), scripted_draft(SMALL)))
        parts = (drafter, make_policy(TREE_POLICIES["expansion"]), rule("transfer", eta=eta), Always(Budget(4, 2, 2)))
        for seed in range(replies):
            engine = Speculator(scripted_target(SMALL), *parts)
            texts.append(speak(engine, 2, context_for(WARM, seed, SMALL, [3, 0, 1]))[0])
        return min(law_p_values(texts, exact).values())

    assert least(0.0, 350) > 1e-4
    assert least(40.0, 600) < 1e-6


# ------------------------------------------------------------------------------------------------ rollback


def test_a_guess_is_rolled_back_where_its_negative_log_probability_exceeds_the_distance():
    for token in range(4):
        for distance in (0.1, 1.0, 2.0, 3.0, 10.0):
            made = rule("rollback", distance=distance)
            verdict = judged(made, tree_of([[token]]), [PEAKED, FLAT], GREEDY)
            near = -math.log(PEAKED[token]) <= distance
            assert (verdict.path == (1,)) == (near or token == 0), "token 0 is the target's own"
            if not near:
                assert verdict.emitted[0] == 0


def test_without_a_bound_nothing_is_rolled_back_and_the_target_speaks_only_where_the_draft_stops():
    def any_token(tree, node, width, context):
        return [Guess((tree.tokens[node] + 1) % SMALL)]

    parts = (Proposing(any_token), make_policy(TREE_POLICIES["chain"]), rule("rollback", distance=math.inf))
    for sampling in (GREEDY, WARM):
        engine = Speculator(scripted_target(SMALL), *parts, Always(Budget(3, 3, 1)))
        _, rounds = speak(engine, 40, context_for(sampling, 7, SMALL))
        assert all(round.accepted == 3 for round in rounds)
