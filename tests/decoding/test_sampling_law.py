"""What is emitted is distributed as the target says, at every position; and the tests that say so can fail."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from contracts.covering import covering
from contracts.draw_plugins import (
    AllOfThem,
    ArgmaxFirst,
    ForgetsResidual,
    OneDraw,
    Residual,
    SamplingDrafter,
    StaleCoins,
    Together,
)
from contracts.kit import (
    Always,
    context_for,
    draft_says,
    every,
    lossless_rules,
    make_drafter,
    make_policy,
    make_rule,
    plain_text,
    scripted_draft,
    scripted_target,
    speak,
    target_says,
)
from contracts.proposing import Proposing, counting_up
from contracts.text_laws import chi_square_p, exact_laws, law_p_values
from rows import each_row

from specchat.acceptance import ACCEPTANCE_RULES
from specchat.core.budget import Budget
from specchat.core.noise import Stream
from specchat.core.sampling import Sampling
from specchat.core.tree import DrawKind
from specchat.decoding.combinations import keeps_draws
from specchat.decoding.speculate import Speculator
from specchat.drafters import DRAFTERS
from specchat.drafters.choice import choose
from specchat.models.backends.scripted import ScriptedModel
from specchat.registry import Method
from specchat.settings import Settings
from specchat.trees import TREE_POLICIES

V = 5
LENGTH = 3
SEEDS = 200
LAW = {"vocab_size": V, "memory": 2, "sharpness": 0.9}
NOISE = 2.0
"""The draft's law is far from the target's: a mistake shows in a third of the replies that a near one takes."""
PROMPT = [3, 1, 3]
WARM = Sampling(temperature=0.8)
TRUNCATED = Sampling(0.8, 4, 0.9, 0.05, 1.2, 0.2, 0.1)

PLAUSIBLE = 1e-4
"""Seeds are fixed, so a test passes always or never; a right law falls below this once in ten thousand choices."""

ABSURD = 1e-7


def target():
    return scripted_target(**LAW)


def draft():
    return scripted_draft(**LAW, noise=NOISE)


def says_draft(text):
    return draft_says(**LAW, noise=NOISE)(text)


@cache
def exact(sampling: Sampling) -> dict[Any, float]:
    texts = exact_laws(target_says(**LAW), PROMPT, LENGTH, sampling, V)
    assert sum(texts.values()) == pytest.approx(1)
    return texts


@cache
def plain(sampling: Sampling) -> list[int]:
    return plain_text(target(), 16, sampling, prompt=PROMPT)


def sample(
    speculator: Callable[[], Speculator], sampling: Sampling = WARM, seeds: int = SEEDS, first: int = 0
) -> list[list[int]]:
    """The first tokens of many replies, each with a seed of its own."""
    whole = speculator()
    return [speak(whole, LENGTH, context_for(sampling, first + seed, V, PROMPT))[0] for seed in range(seeds)]


def engine(drafter, policy, rule, budget=None) -> Callable[[], Speculator]:
    return lambda: Speculator(target(), drafter(), policy, rule, Always(budget or Budget(6, 3, 2)))


def worst(samples: list[list[int]], sampling: Sampling = WARM) -> float:
    return min(law_p_values(samples, exact(sampling)).values())


# --------------------------------------------------------------------------------------- what is listed


@pytest.mark.parametrize("sampling", [WARM, TRUNCATED], ids=["warm", "everything"])
@pytest.mark.parametrize("rule", [r for r in every(ACCEPTANCE_RULES) if make_rule(r.values[0]).lossless])
def test_plain_decoding_samples_from_the_target(rule, sampling):
    plain = engine(
        lambda: Proposing(counting_up), make_policy(TREE_POLICIES["chain"]), make_rule(rule), Budget(nodes=0)
    )
    assert worst(sample(plain, sampling), sampling) > PLAUSIBLE


PQ_RULES = [rule for rule in lossless_rules() if make_rule(rule.values[0]).wanted is not DrawKind.POINT]
SPEAKING = [drafter for drafter in every(DRAFTERS) if drafter.id != "none"]
SAMPLERS = [drafter for drafter in SPEAKING if len(choose(drafter.id, Settings()).draw_kinds) > 1]
DRAWING = [
    one
    for one in SAMPLERS
    if one.id == "hydra" or not (one.values[0].needs_weights or one.values[0].needs_shipped_head)
]
"""Trained networks share one drafter; tests/acceptance/test_trained_draws.py looks at the draws of each."""

REPLIES = 38
"""Of each combination: 456 of each drafter, 266 of each policy and 798 of each rule."""


def test_speculation_samples_from_the_target():
    """Few replies of each combination, and hundreds of each drafter, of each policy and of each rule.

    tests/acceptance/test_policy_laws.py tries every policy and rule exactly.
    """
    texts = pooled()
    assert min(map(len, texts.values())) >= 266
    plausible = {method: worst(said) for method, said in texts.items()}
    assert {method: p for method, p in plausible.items() if p <= PLAUSIBLE} == {}


def test_a_lossy_rule_would_be_noticed_in_the_same_samples():
    """Where `lenient` judges, as many replies with the draft model follow another law."""
    said = pooled("draft_model", ACCEPTANCE_RULES["lenient"])["all"]
    assert len(said) == len(TREE_POLICIES) * REPLIES
    assert worst(said) < ABSURD


def pooled(only: str | None = None, instead: Method | None = None) -> dict[str, list[list[int]]]:
    """Few replies of each combination by the methods in it.

    Args:
        only: a drafter, the others being left out.
        instead: judges in the place of the rules.
    """
    texts: dict[str, list[list[int]]] = defaultdict(list)
    for number, row in enumerate(covering(DRAWING, every(TREE_POLICIES), PQ_RULES)):
        drafter, policy, rule = row.values
        if only in (None, drafter.name):
            speculative = engine(
                lambda: make_drafter(drafter, draft(), V),  # noqa: B023
                make_policy(policy),
                make_rule(instead or rule),
            )
            said = sample(speculative, seeds=REPLIES, first=REPLIES * number)
            for method in ("all", f"drafter {drafter.name}", f"policy {policy.name}", f"rule {rule.name}"):
                texts[method] += said
    return texts


@each_row(
    ("drafter", "policy", "rule", "sampling"),
    covering(
        [drafter for drafter in SPEAKING if drafter not in SAMPLERS],
        every(TREE_POLICIES),
        PQ_RULES,
        [pytest.param(WARM, id="warm"), pytest.param(TRUNCATED, id="everything")],
    ),
)
def test_a_drafter_that_proposes_points_alone_never_changes_the_text_under_any_rule(drafter, policy, rule, sampling):
    speculative = engine(lambda: make_drafter(drafter, draft(), V), make_policy(policy), make_rule(rule))()
    assert speak(speculative, 16, context_for(sampling, 7, V, PROMPT))[0] == plain(sampling)


# ------------------------------------------------------------------------- draws with probabilities

WIDTH_3 = Budget(99, 1, 3)


def drawing(**options):
    return lambda: SamplingDrafter(says_draft, **options)


def beside_points():
    return SamplingDrafter(says_draft, points=lambda tree, node: [0, 2])


def two_of_them():
    return Together(SamplingDrafter(says_draft), SamplingDrafter(target_says(**LAW), name="another"))


@pytest.mark.parametrize(
    ("wanted", "drafter", "budget"),
    [
        (DrawKind.IID, drawing(), Budget(3, 3, 1)),
        (DrawKind.IID, drawing(), WIDTH_3),
        (DrawKind.WOR, drawing(), WIDTH_3),
        (DrawKind.IID, beside_points, Budget(99, 2, 2)),
        (DrawKind.WOR, beside_points, Budget(99, 2, 2)),
        (DrawKind.IID, two_of_them, Budget(99, 2, 2)),
        (DrawKind.WOR, two_of_them, Budget(99, 2, 2)),
    ],
    ids=["one", "iid", "wor", "iid and points", "wor and points", "two iid proposers", "two wor proposers"],
)
def test_the_residual_recursion_samples_from_the_target(wanted, drafter, budget):
    rule = Residual(wanted)
    speculator = engine(drafter, AllOfThem(), rule, budget)
    assert worst(sample(speculator)) > PLAUSIBLE


KEPT = [
    pytest.param(method, kind, id=f"{name}-{kind.value}")
    for place, (name, method) in enumerate(TREE_POLICIES.items())
    if (kinds := [kind for kind in (DrawKind.IID, DrawKind.WOR) if keeps_draws(method, kind)])
    for kind in (kinds if name == "rsd_s" else [kinds[place % len(kinds)]])
]
"""One kind of each: tests/acceptance/test_policy_laws.py tries both exactly, but of one that has noise of its own."""


@pytest.mark.parametrize(("policy", "wanted"), KEPT)
def test_the_listed_policies_keep_draws_what_they_say_they_are(policy, wanted):
    """Under every sampling setting, and with a draft model that really draws, from a law near enough to be accepted."""
    drafter, near = DRAFTERS["draft_model"], scripted_draft(**LAW)
    speculator = engine(lambda: make_drafter(drafter, near, V), make_policy(policy), Residual(wanted), Budget(3, 2, 3))
    assert worst(sample(speculator, TRUNCATED, 120), TRUNCATED) > PLAUSIBLE


def test_points_alone_make_the_residual_rule_follow():
    drafter = lambda: Proposing(counting_up)  # noqa: E731
    policy = make_policy(TREE_POLICIES["expansion"])
    rules = [Residual(DrawKind.POINT), make_rule(ACCEPTANCE_RULES["follow"])]
    first, second = (sample(engine(drafter, policy, rule), seeds=60) for rule in rules)
    assert first == second


def test_draws_from_the_target_itself_are_always_accepted():
    speculator = engine(
        lambda: SamplingDrafter(target_says(**LAW)), AllOfThem(), Residual(DrawKind.IID), Budget(9, 3, 1)
    )()
    for seed in range(40):
        _, rounds = speak(speculator, 8, context_for(WARM, seed, V, PROMPT))
        assert all(round.accepted == 3 for round in rounds)


# ----------------------------------------------------------------------------------- what must be noticed


def flat(q: torch.Tensor) -> torch.Tensor:
    return torch.full_like(q, 1 / V)


def top(q: torch.Tensor) -> torch.Tensor:
    """What a drafter that takes the best token would be if it called that a draw from q."""
    return q.square() / q.square().sum()


MISTAKES = {
    "one draw for all positions": (
        engine(lambda: Proposing(counting_up), make_policy(TREE_POLICIES["chain"]), OneDraw()),
        150,
    ),
    "first token by argmax": (
        engine(
            lambda: Proposing(counting_up),
            make_policy(TREE_POLICIES["chain"]),
            ArgmaxFirst(make_rule(ACCEPTANCE_RULES["follow"])),
        ),
        100,
    ),
    "q flattened": (engine(drawing(misreport=flat), AllOfThem(), Residual(DrawKind.IID), WIDTH_3), 100),
    "q sharpened": (engine(drawing(misreport=top), AllOfThem(), Residual(DrawKind.IID), WIDTH_3), 250),
    "coins used again": (engine(drawing(), AllOfThem(), StaleCoins(DrawKind.IID), Budget(9, 2, 1)), 600),
    "no residual": (engine(drawing(), AllOfThem(), ForgetsResidual(DrawKind.IID), WIDTH_3), 400),
}
"""Parts with a mistake, and after how many replies it is certain."""


@pytest.mark.parametrize(("mistake", "seeds"), MISTAKES.values(), ids=MISTAKES.keys())
def test_a_known_mistake_is_noticed(mistake, seeds):
    assert worst(sample(mistake, seeds=seeds)) < ABSURD


FIRST_TOKENS = 1500


def first_token_p(p: list[float], q: list[float], draws: int, **drafting: Any) -> float:
    """How plausible the first tokens of many replies are, where target and draft always say p and q."""
    drafter = SamplingDrafter(lambda text: torch.tensor(q).log(), **drafting)
    fixed = ScriptedModel(4, lambda text: torch.tensor(p).log())
    rule = Residual(DrawKind.IID)
    speculator = Speculator(fixed, drafter, AllOfThem(), rule, Always(Budget(draws, 1, draws)))
    counts = [0.0] * 4
    for seed in range(FIRST_TOKENS):
        text, _ = speak(speculator, 1, context_for(Sampling(temperature=1.0), seed, 4, PROMPT))
        counts[text[0]] += 1
    return chi_square_p(counts, [FIRST_TOKENS * share for share in p])


@pytest.mark.parametrize("stream", [Stream.DRAFT, Stream.TARGET], ids=["its own", "the target's"])
def test_a_draft_that_draws_with_the_targets_noise_under_a_residual_rule_is_noticed(stream):
    """Sharing noise is right under `follow` and wrong here; with noise of its own the same draft is right."""
    p = first_token_p([0.355, 0.021, 0.224, 0.4], [0.252, 0.611, 0.128, 0.009], 1, stream=stream)
    assert p > PLAUSIBLE if stream is Stream.DRAFT else p < ABSURD


@pytest.mark.parametrize("redraw", [False, True], ids=["as drawn", "redrawn"])
def test_draws_redrawn_until_different_and_called_independent_are_noticed(redraw):
    p = first_token_p([0.3, 0.3, 0.2, 0.2], [0.9, 0.05, 0.03, 0.02], 2, redraw=redraw)
    assert p < ABSURD if redraw else p > PLAUSIBLE


def test_a_wrong_temperature_is_noticed():
    samples = sample(
        engine(
            lambda: Proposing(counting_up), make_policy(TREE_POLICIES["chain"]), make_rule(ACCEPTANCE_RULES["follow"])
        ),
        Sampling(temperature=1.4),
    )
    assert worst(samples, WARM) < ABSURD
