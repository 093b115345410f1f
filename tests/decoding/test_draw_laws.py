"""Every sampled draw that has a place in a tree is distributed as it says, whoever made it, in deeper trees too."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from functools import cache

import pytest
import torch
from contracts.kit import Always, context_for, drafter_for, make_policy, make_rule
from contracts.text_laws import chi_square_p

from specchat.acceptance import ACCEPTANCE_RULES
from specchat.core.budget import Budget
from specchat.core.noise import Stream
from specchat.core.sampling import Sampling, law
from specchat.core.tree import ROOT, DrawKind, TokenTree
from specchat.decoding.combinations import keeps_draws
from specchat.decoding.speculate import Speculator
from specchat.drafters import DRAFTERS
from specchat.drafters.choice import choose
from specchat.drafters.parts import Parts
from specchat.drafters.several import Several
from specchat.models.backends.scripted import ScriptedModel
from specchat.registry import options_of
from specchat.settings import Settings
from specchat.trees import TREE_POLICIES

V = 4
TARGET = torch.tensor([0.50, 0.04, 0.23, 0.23], dtype=torch.float64)
DRAFT = torch.tensor([0.40, 0.34, 0.13, 0.13], dtype=torch.float64)
REPEATS = [0, 1, 2, 3, 0, 1, 2, 3]
"""A lookup is nearly sure how this goes on: it raises the value of one token that may be drawn, too."""

ASKED = {"confidence": {"fallback": 0.0, "alpha": 0.0}}
"""Options with which a policy drafts from so flat a law."""

PLAUSIBLE = 1e-4
ABSURD = 1e-7
TIGHT = Budget(3, 2, 4)

HEARD = {
    "merge": {"merge.sure": 1.0},
    "cascade": {"cascade.of": "prompt_lookup,draft_model", "cascade.least": 0.9},
}
"""Options with which both members of a drafter are heard."""

KINDS = (DrawKind.IID, DrawKind.WOR)


def given_to(name):
    """Options with which a drafter draws if it can: one that is made of others has a member that does."""
    made_of_others = "of" in {option.name for option in options_of(DRAFTERS[name].options)}
    return {f"{name}.of": "draft_model,prompt_lookup", **HEARD.get(name, {})} if made_of_others else {}


def draws(name):
    return not {*KINDS}.isdisjoint(choose(name, Settings().but({"method_options": given_to(name)})).draw_kinds)


DRAWING = [
    name
    for name, method in DRAFTERS.items()
    if name != "none" and not method.needs_weights and not method.needs_shipped_head and draws(name)
]
"""Trained networks are looked at in tests/acceptance/test_trained_draws.py, with states of the text."""

KEPT = [
    pytest.param(drafter, method, kind := kinds[(row + column) % len(kinds)], id=f"{drafter}-{name}-{kind.value}")
    for row, drafter in enumerate(DRAWING)
    for column, (name, method) in enumerate(TREE_POLICIES.items())
    if (kinds := [kind for kind in KINDS if keeps_draws(method, kind)])
]
"""Every two of a drafter, a policy and a kind of draws that the policy keeps."""

EACH = 60
"""Seeds of each combination: hundreds of each drafter and of each policy."""


def target_model():
    return ScriptedModel(V, lambda text: TARGET.log().float())


def drafting(name, given):
    return drafter_for(target_model(), ScriptedModel(V, lambda text: DRAFT.log().float()), name, given)


def draws_at_the_root(drafter, policy, kind, seed, budget=TIGHT):
    context = context_for(Sampling(temperature=1.0), seed, V, REPEATS)
    context.wanted, context.wants_q = kind, True
    drafter.start(context.history)
    tree: TokenTree = policy.grow(drafter, context, budget)
    return [draw.guess for draw in tree.draws(ROOT) if draw.guess.kind is not DrawKind.POINT]


def draws_seen(drafter, policy, kind, seeds, q=DRAFT, budget=TIGHT):
    """How often each token was drawn from q, by the draws before it."""
    seen, said = defaultdict(Counter), []
    for seed in seeds:
        before = ()
        for guess in draws_at_the_root(drafter, policy, kind, seed, budget):
            said.append(guess.q)
            seen[before][guess.token] += 1
            before = (*before, guess.token)
    assert seen[()].total() > len(seeds) / 2, "draws have a place"
    assert torch.allclose(torch.stack(said), q, atol=1e-6)
    return seen


def least_of(seen, kind, q=DRAFT):
    """The least plausible of all draws from q, given the draws before them, corrected for how many are looked at."""
    values = []
    for before, counts in seen.items():
        left = q.clone()
        if kind is DrawKind.WOR:
            left[list(before)] = 0.0
        expected = (left / left.sum() * counts.total()).tolist()
        values.append(chi_square_p([counts[token] for token in range(V)], expected))
    return min(1.0, min(values) * len(values))


def least_p(drafter, policy, kind, seeds, budget=TIGHT):
    return least_of(draws_seen(drafter, policy, kind, range(seeds), budget=budget), kind)


@cache
def seen_of(row):
    """A few draws of one combination, with seeds of its own."""
    drafter, method, kind = KEPT[row].values
    policy = make_policy(method, **ASKED.get(method.name, {}))
    seeds = range(EACH * row, EACH * (row + 1))
    return draws_seen(drafting(drafter, given_to(drafter)), policy, kind, seeds, law_of(drafter))


def law_of(drafter):
    return TARGET if DRAFTERS[drafter].runs_the_target else DRAFT


def least_of_rows(rows):
    """The least plausible of the draws of some combinations, those of one kind and from one law taken together."""
    together = defaultdict(lambda: defaultdict(Counter))
    for row in rows:
        drafter, _, kind = KEPT[row].values
        for before, counts in seen_of(row).items():
            together[kind, DRAFTERS[drafter].runs_the_target][before] += counts
    values = [least_of(seen, kind, TARGET if target else DRAFT) for (kind, target), seen in together.items()]
    return min(1.0, min(values) * len(values))


@pytest.mark.parametrize("name", DRAWING)
def test_whoever_makes_draws_their_places_never_depend_on_their_own_tokens(name):
    """At depth 2 with few nodes: what stands below a draw competes with the draws beside it."""
    assert least_of_rows(row for row, one in enumerate(KEPT) if one.values[0] == name) > PLAUSIBLE


@pytest.mark.parametrize("name", dict.fromkeys(one.values[1].name for one in KEPT))
def test_under_every_policy_places_of_draws_never_depend_on_their_own_tokens(name):
    """The same draws by policy."""
    assert least_of_rows(row for row, one in enumerate(KEPT) if one.values[1].name == name) > PLAUSIBLE


@pytest.mark.parametrize(
    ("method", "kind"),
    [
        pytest.param(method, kind, id=f"{name}-{kind.value}")
        for name, method in TREE_POLICIES.items()
        for kind in KINDS
        if keeps_draws(method, kind)
    ],
)
def test_prices_take_no_place_from_a_draw_because_of_its_token(method, kind):
    """Nodes are priced, and passes are: how many draws stay at the root depends on those that were drawn before."""
    policy = make_policy(method, **ASKED.get(method.name, {}))
    priced = Budget(6, 2, 4, prices=(0.1, 0.2, 0.3, 0.4, 0.5, 0.6), pass_price=0.3)
    assert least_p(drafting("draft_model", {}), policy, kind, 150, priced) > PLAUSIBLE


def test_drafters_that_draw_are_in_these_tests():
    assert {"draft_model", "merge", "several", "cascade", "early_exit", "sparse_context"} <= set(DRAWING)
    assert {"suffix", "fuse"}.isdisjoint(DRAWING)


def test_a_member_that_is_asked_below_its_own_draws_alone_would_be_noticed():
    drafter = drafting("several", given_to("several"))
    assert isinstance(drafter, Several)
    assert least_p(drafter, make_policy(TREE_POLICIES["best_first"]), DrawKind.IID, 1000) > PLAUSIBLE
    drafter._samplers = [False, False]
    assert least_p(drafter, make_policy(TREE_POLICIES["best_first"]), DrawKind.IID, 1000) < ABSURD


PAIRS = [
    "draft_model(trim=0)+draft_model",
    "layer_skip(window=4)+layer_skip",
    "early_exit(exits=4)+early_exit",
    "sparse_context(refresh=8)+sparse_context",
    "sparse_context+draft_model",
    "pruned(samples=4)+pruned",
    "retrieved_context(chunk=8)+retrieved_context",
    "cascade(of=prompt_lookup+draft_model)+draft_model",
    "merge(of=draft_model(trim=0)+suffix)+draft_model",
]
"""Two members each that draw from one law: with the same noise they would draw the same tokens."""


def independence_p(draws):
    """How plausible it is that the columns of these draws, (n, k), are independent: the least of all pairs."""
    columns = list(zip(*draws, strict=True))
    values = []
    for first, second in itertools.combinations(columns, 2):
        seen = Counter(zip(first, second, strict=True))
        alone = Counter(first), Counter(second)
        cells = list(itertools.product(range(V), repeat=2))
        expected = [alone[0][one] * alone[1][other] / len(draws) for one, other in cells]
        values.append(chi_square_p([seen[cell] for cell in cells], expected))
    return min(1.0, min(values) * len(values))


def draws_of_members_and_target(of, kind, seeds):
    """The first draw of each member after a text, and the target's own with the same seed."""
    drafter, found = drafting("several", {"several.of": of}), []
    for seed in range(seeds):
        context = context_for(Sampling(temperature=1.0), seed, V, [0, 1, 2, 3])
        context.wanted = kind
        drafter.start(context.history)
        (said,) = drafter.propose(TokenTree(context.root, V), [ROOT], 2, context)
        drawn = {guess.proposer: guess.token for guess in reversed(said) if guess.kind is kind}
        assert len(drawn) == 2, "both members draw"
        own = law(TARGET.log(), context.sampling).draw(context.noise, Stream.TARGET, len(context.history))
        found.append((*(drawn[name] for name in sorted(drawn)), own))
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("of", PAIRS)
def test_members_draw_independently_of_each_other_and_of_the_target(of, kind):
    assert independence_p(draws_of_members_and_target(of, kind, 80)) > PLAUSIBLE


def test_every_drafter_that_draws_by_itself_is_paired_with_one_of_its_name():
    alone = [name for name in DRAWING if "of" not in {option.name for option in options_of(DRAFTERS[name].options)}]
    assert {name for name in alone if not any(of.count(name) > 1 for of in PAIRS)} == set()


def test_members_that_share_their_noise_would_be_noticed(monkeypatch):
    monkeypatch.setattr(Parts, "noise", lambda self, noise: noise.child("drafter"))
    assert independence_p(draws_of_members_and_target(PAIRS[0], DrawKind.IID, 80)) < ABSURD


NESTED = [
    "cascade(of=prompt_lookup+draft_model)+draft_model",
    "draft_model+cascade(of=draft_model(drawing=top)+suffix)",
]


@pytest.mark.parametrize("wrapper", ["merge", "several"])
@pytest.mark.parametrize("of", NESTED)
def test_drafters_of_one_name_at_different_levels_have_names_of_their_own(wrapper, of):
    chosen = choose(wrapper, Settings().but({"method_options": {f"{wrapper}.of": of}}))
    numbers = [part.number for part in chosen.all() if part.name == "draft_model"]
    assert numbers == [1, 2]
    assert all(part.number == 0 for part in chosen.all() if part.name != "draft_model")


def replies(drafter, seeds):
    """How often each token came first under the rule for draws without replacement."""
    rule, policy = make_rule(ACCEPTANCE_RULES["recursive"]), make_policy(TREE_POLICIES["expansion"])
    whole = Speculator(target_model(), drafter, policy, rule, Always(Budget(8, 1, 4)))
    first: Counter[int] = Counter()
    for seed in range(seeds):
        context = context_for(Sampling(temperature=1.0), seed, V, [0, 1, 2, 3])
        whole.start(context.history)
        first[whole.round(context).emitted[0]] += 1
    return chi_square_p([first[token] for token in range(V)], (TARGET * seeds).tolist())


@pytest.mark.parametrize("wrapper", ["merge", "several"])
def test_draft_models_at_different_levels_write_the_targets_law_together(wrapper):
    assert replies(drafting(wrapper, {f"{wrapper}.of": NESTED[0]}), 500) > PLAUSIBLE


def test_draws_without_replacement_of_two_that_share_a_name_would_be_noticed():
    drafter = drafting("merge", {"merge.of": NESTED[0]})
    for one in (drafter.members[0].members[1], drafter.members[1]):
        one.proposer = "draft_model"
    assert replies(drafter, 500) < ABSURD
