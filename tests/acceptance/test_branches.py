"""Rules that judge whole branches are exact: growth of the tree, draws and coins enumerated, beside wrong controls."""

from __future__ import annotations

import itertools
from functools import cache

import pytest
import torch
from contracts.enumerated import Enumerated, Grows, Step, chain, levels
from contracts.kit import context_for, make_drafter, make_policy, make_rule, scripted_draft, scripted_target
from torch import Tensor

from specchat.acceptance import ACCEPTANCE_RULES
from specchat.acceptance.branches import Standing
from specchat.bench.rule_table import ENDS, followed, judged
from specchat.core.budget import Budget
from specchat.core.noise import Noise
from specchat.core.sampling import Sampling
from specchat.core.tree import ROOT, DrawKind, TokenTree
from specchat.drafters import DRAFTERS
from specchat.trees import TREE_POLICIES

IID, WOR = DrawKind.IID, DrawKind.WOR
V, LENGTH = 3, 4
WARM = Sampling(temperature=0.8)
RULES = pytest.mark.parametrize("rule", ["block", "traversal"])


@cache
def law(name: str, path: tuple[int, ...]) -> Tensor:
    """A fixed random distribution after a path, far from flat; every third one has a hole."""
    generator = torch.Generator().manual_seed(hash((len(name), ord(name[0]), *path)) % 2**31)
    numbers = 1.5 * torch.randn(V, generator=generator, dtype=torch.float64)
    if sum(path) % 3 == 1:
        numbers[len(path) % V] = -torch.inf
    return torch.softmax(numbers, dim=0)


def of(salt: str) -> Enumerated:
    return Enumerated(V, LENGTH, lambda path: law("p", path), lambda name, path: law(name + salt, path))


LAWS = of("")


def while_unlikely(tree: TokenTree) -> Step | None:
    """A chain that ends because of its tokens."""
    node = len(tree) - 1
    return (node, IID, "q") if node < 3 and (node == ROOT or tree.tokens[node] != 1) else None


def entangled(kind: DrawKind) -> Grows:
    """Tokens below one branch decide what another gets, and the other way round; no draw's own token decides."""

    def grows(tree: TokenTree) -> Step | None:
        first = next((d.child for d in tree.draws(ROOT)), None)
        if first is None:
            return ROOT, kind, "q"
        if not tree.draws(first):
            return first, kind, "q"
        below = tree.draws(first)[0].guess.token
        if len(tree.draws(ROOT)) < 2 + (below == 0):
            return ROOT, kind, "q"
        second = tree.draws(ROOT)[1].child
        if below != 1 and second != first and not tree.draws(second):
            return second, kind, "q"
        if len(tree.draws(first)) < 2 and tree.draws(second) and tree.draws(second)[0].guess.token == 2:
            return first, kind, "q"
        return None

    return grows


def points_first(tree: TokenTree) -> Step | None:
    """Two points, and draws below them."""
    if tree.drafted < 2:
        return ROOT, tree.drafted
    return next(((node, IID, "q") for node in (1, 2, 3, 4) if node < len(tree) and not tree.draws(node)), None)


def points_beside(tree: TokenTree) -> Step | None:
    """A point beside a draw at the root, and a draw below each child."""
    if not tree.draws(ROOT):
        return ROOT, IID, "q"
    if len(tree.draws(ROOT)) < 2:
        return ROOT, 1
    return next(
        ((node, IID, "q") for node in range(1, len(tree)) if tree.depths[node] < 3 and not tree.draws(node)), None
    )


GROWTH: dict[str, Grows] = {
    "chain": chain(3),
    "chain wor": chain(3, WOR),
    "chain that ends by its tokens": while_unlikely,
    "two iid": levels(IID, 2, 2),
    "three iid": levels(IID, 3, 1),
    "two wor": levels(WOR, 2, 2),
    "three wor": levels(WOR, 3, 1),
    "two proposers": levels(IID, 2, 1, names="qr"),
    "entangled iid": entangled(IID),
    "entangled wor": entangled(WOR),
    "points first": points_first,
    "points beside": points_beside,
}


@RULES
def test_texts_are_distributed_as_the_targets(rule):
    for name, grows in GROWTH.items():
        assert LAWS.error(grows, ENDS[rule]) < 1e-12, name


@RULES
def test_nodes_that_are_dropped_because_of_their_tokens_leave_the_law_as_it_is(rule):
    def drops(tree: TokenTree) -> list[int]:
        lost = {n for n in range(1, len(tree)) if tree.tokens[n] == 2 and tree.depths[n] == 1}
        return [n for n in range(1, len(tree)) if lost.intersection((n, *tree.path(n)))]

    for grows in (chain(3), levels(IID, 2, 2), levels(WOR, 2, 2)):
        assert LAWS.error(grows, ENDS[rule], drops) < 1e-12


def test_a_sure_node_stays_sure_where_only_rounding_is_left():
    p = torch.tensor([0.5, 0.5 - 1e-17, 1e-17], dtype=torch.float64)
    left = Standing(1.0, p).without(torch.tensor([0.5, 0.5, 0.0], dtype=torch.float64))
    assert (left.weight, left.law.tolist()) == (1.0, [0.0, 0.0, 1.0])
    assert Standing(1.0, p).without(p).weight == 1.0
    assert Standing(0.5, p).without(p).weight == 0.0


# ---------------------------------------------------------------------------------------- what must not be done


def token_by_token(left: Standing, g: Tensor) -> Standing:
    """The residual of a draw that is judged alone, where a branch was."""
    rest = (left.law - g).clamp(min=0.0)
    return Standing(left.weight, rest / rest.sum()) if float(rest.sum()) > 0.0 else left


def without_its_weight(left: Standing, g: Tensor) -> Standing:
    """The right residual, but the node's own chance is left as it was."""
    return Standing(left.weight, right(left, g).law)


right = Standing.without


@RULES
@pytest.mark.parametrize("mistake", [token_by_token, without_its_weight])
def test_another_residual_is_measurably_wrong(rule, mistake, monkeypatch):
    monkeypatch.setattr(Standing, "without", mistake)
    assert LAWS.error(chain(2), ENDS[rule]) > 1e-3


def mixing(tree: TokenTree) -> Step | None:
    """A point at the root that has a place because of a token below a draw beside it."""
    if not tree.draws(ROOT):
        return ROOT, IID, "q"
    if not tree.draws(1):
        return 1, IID, "q"
    return (ROOT, 0) if len(tree.draws(ROOT)) < 2 and tree.draws(1)[0].guess.token == 0 else None


@RULES
def test_points_that_compete_with_tokens_below_draws_are_measurably_wrong(rule):
    """Why `combinations` refuses drafters that mix them."""
    assert LAWS.error(mixing, ENDS[rule]) > 1e-3


@RULES
@pytest.mark.parametrize("lie", ["called wor", "another q"])
def test_draws_that_are_not_what_they_say_are_measurably_wrong(rule, lie):
    found = torch.zeros((V,) * LENGTH, dtype=torch.float64)
    for probability, tree in LAWS.grown(levels(IID, 2, 1)):
        told = []
        for parent in range(len(tree)):
            for draw in tree.draws(parent):
                q = draw.guess.q if lie == "called wor" else law("other", ())
                told.append((parent, draw.guess._replace(kind=WOR if lie == "called wor" else IID, q=q)))
        found += probability * LAWS.text_law(LAWS.built(told).freeze(), ENDS[rule])
    assert float((found - LAWS.wanted()).abs().max()) > 1e-3


# ---------------------------------------------------------------------------------------------- acceptance


@pytest.mark.parametrize("key", range(6))
def test_on_chains_a_block_is_never_shorter_than_draws_judged_one_by_one(key):
    laws, gain = of("x" * key), 0.0
    for depth in (1, 2, 3):
        grows = chain(depth)
        alone, block = (laws.expected(grows, ENDS[rule]) for rule in ("multi_step", "block"))
        assert block >= alone - 1e-12
        assert block == pytest.approx(laws.expected(grows, ENDS["traversal"]), abs=1e-12), "on chains they are the same"
        assert alone >= laws.expected_by(grows, followed) - 1e-12
        gain = max(gain, block - alone)
        if depth == 1:
            assert block == pytest.approx(alone, abs=1e-12)
    assert gain > 1e-4, "and longer where likely tokens may follow an unlikely one"


@pytest.mark.parametrize("key", range(6))
def test_in_trees_judging_branches_is_never_shorter_either(key):
    laws = of("x" * key)
    for kind, rules in ((WOR, ("recursive", "traversal")), (IID, ("multi_step", "block", "traversal"))):
        for grows in (levels(kind, 2, 1), levels(kind, 2, 2)):
            lengths = [laws.expected(grows, ENDS[rule]) for rule in rules]
            assert all(after >= before - 1e-12 for before, after in itertools.pairwise(lengths)), (kind, lengths)


@pytest.mark.parametrize("rule", ENDS)
def test_a_round_emits_as_many_tokens_as_was_computed(rule):
    """The rule itself, with its coins and the target's noise, over two trees that were drawn once."""
    target, judge = scripted_target(), make_rule(ACCEPTANCE_RULES[rule])
    for seed in (1, 2):
        context = context_for(WARM, seed)
        context.wanted, context.budget = judge.wanted, Budget(9, 3, 3)
        drafter = make_drafter(DRAFTERS["draft_model"], scripted_draft())
        drafter.start(context.history)
        tree = make_policy(TREE_POLICIES["expansion"]).grow(drafter, context, context.budget)
        target.prefill(context.history[:-1])
        reading = target.read(tree)

        def laws(node, tree=tree, context=context, reading=reading):
            return context.law_after(tree, node, reading.after(node)).dense(context.vocab_size)

        counts = []
        for other in range(300):
            context.noise = Noise(other)
            counts.append(float(len(judge.judge(tree, reading, context).emitted)))
        said, computed = torch.tensor(counts), judged(tree, laws, ENDS[rule])
        assert abs(float(said.mean()) - computed) < 4 * float(said.std()) / 300**0.5 + 1e-9
