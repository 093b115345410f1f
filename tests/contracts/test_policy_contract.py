"""What every tree policy of the table promises: a frozen tree within the budget, with any drafter."""

from __future__ import annotations

import math

import pytest
from contracts.kit import V, context_for, every, make_policy
from contracts.proposing import Proposing, counting_up
from rows import each_row

from specchat.core.budget import Budget
from specchat.core.tree import ROOT, DrawKind, Guess
from specchat.decoding.combinations import keeps_draws
from specchat.errors import ProposalError
from specchat.trees import TREE_POLICIES

pytestmark = pytest.mark.parametrize("method", every(TREE_POLICIES))

CHANCES = {4: 0.5, 5: 0.3, 6: 0.15, 7: 0.05}
BUDGETS = [Budget(nodes, depth, width) for nodes in (1, 2, 5, 16) for depth in (1, 3, 7) for width in (1, 2, 4)]


@each_row("budget", BUDGETS, ids=lambda b: f"{b.nodes}-{b.depth}-{b.width}")
def test_the_tree_is_frozen_and_within_the_budget(method, budget):
    context = context_for()
    drafter = Proposing(counting_up)
    tree = make_policy(method).grow(drafter, context, budget)
    assert tree.frozen
    assert tree.tokens[ROOT] == context.root
    assert 1 <= tree.drafted <= budget.nodes
    assert max(tree.depths) <= budget.depth
    assert max(drafter.widths) <= max(budget.width, 1)
    assert all(parent < node for node, parent in enumerate(tree.parents))


@each_row("budget", [Budget(0, 4, 2), Budget(0, 0, 0), Budget(3, 0, 1), Budget(3, 0, 3)], ids=str)
def test_no_nodes_or_no_depth_is_the_root_alone_and_no_drafter_is_asked(method, budget):
    drafter = Proposing(counting_up)
    tree = make_policy(method).grow(drafter, context_for(), budget)
    assert len(tree) == 1
    assert tree.frozen
    assert drafter.asked == []


def test_a_drafter_that_proposes_nothing_gives_the_root_alone(method):
    drafter = Proposing(lambda tree, node, width, context: ())
    tree = make_policy(method).grow(drafter, context_for(), Budget(8, 4, 2))
    assert len(tree) == 1
    assert tree.frozen


def test_a_drafter_that_gives_up_after_a_level_leaves_what_it_proposed(method):
    def one_level(tree, node, width, context):
        return counting_up(tree, node, width, context) if node == ROOT else ()

    tree = make_policy(method).grow(Proposing(one_level), context_for(), Budget(8, 4, 2))
    assert max(tree.depths) == 1


def test_duplicates_share_a_node_and_keep_every_draw(method):
    def twice(tree, node, width, context):
        return [Guess(4, proposer="a"), Guess(4, proposer="b"), Guess(5, proposer="c")][:width]

    policy = make_policy(method)
    tree = policy.grow(Proposing(twice), context_for(), Budget(8, 3, 3))
    for node in range(len(tree)):
        tokens = [tree.tokens[child] for child in tree.children(node)]
        assert len(tokens) == len(set(tokens))
        by = [(tree.tokens[draw.child], draw.guess.proposer) for draw in tree.draws(node)]
        assert by == [(4, "a"), (4, "b"), (5, "c")][: len(by)]
        assert all(tree.parents[draw.child] == node for draw in tree.draws(node))


def test_a_drafter_that_repeats_itself_forever_does_not_hang_it(method):
    tree = make_policy(method).grow(
        Proposing(lambda tree, node, width, context: [Guess(4)] * width), context_for(), Budget(500, 6, 4)
    )
    assert tree.tokens[1:] == [4] * tree.drafted


def test_a_drafter_that_proposes_more_than_it_was_asked_for_stays_in_the_budget(method):
    def greedy(tree, node, width, context):
        return [Guess(token) for token in range(V)]

    budget = Budget(5, 3, 2)
    tree = make_policy(method).grow(Proposing(greedy), context_for(), budget)
    assert tree.drafted <= 5
    assert all(len(tree.children(node)) <= budget.width for node in range(len(tree)))


@each_row("token", [-1, V, V + 1000])
def test_a_token_outside_the_vocabulary_is_refused_by_name(method, token):
    drafter = Proposing(lambda tree, node, width, context: [Guess(token, proposer="wild")])
    with pytest.raises(ProposalError, match=rf"wild proposed token {token}, outside the vocabulary of {V}"):
        make_policy(method).grow(drafter, context_for(), Budget(4, 2, 2))


@pytest.mark.parametrize("kind", [DrawKind.IID, DrawKind.WOR], ids=lambda kind: kind.value)
def test_whether_a_draw_stays_never_depends_on_its_own_token(method, kind):
    """Given the tokens drawn before it, a draw gets its place or does not, whatever it is: else its q is a lie."""

    def grown(tokens):
        def draws(tree, node, width, context):
            return [Guess(t, kind, logprob=math.log(CHANCES[t])) for t in tokens[:width]] if node == ROOT else ()

        return make_policy(method).grow(Proposing(draws), context_for(), Budget(2, 1, 3)).draws(ROOT)

    if not keeps_draws(method, kind):
        return  # assemble refuses rules that need such draws: tests/acceptance/test_combinations.py
    for earlier in ([4], [5], [4, 5], *([[4, 4]] if kind is DrawKind.IID else [])):
        later = set(CHANCES) - (set(earlier) if kind is DrawKind.WOR else set())
        assert len({len(grown([*earlier, token])) for token in later}) == 1
    assert {draw.guess.kind for draw in grown([4, 5])} == {kind}


@each_row("chance", [0.9, 0.7, 0.5])
def test_a_draft_model_runs_only_below_nodes_that_are_worth_its_pass(method, chance):
    """The one guess of each node stands with this probability: below depth d a pass is worth chance^d."""

    class Drafting(Proposing):
        def propose(self, tree, frontier, width, context):
            self.passes += context.passes
            said = super().propose(tree, frontier, width, context)
            return said if context.passes else [() for _ in frontier]

    def passes(price):
        drafter = Drafting(lambda tree, node, width, context: [Guess(4, logprob=math.log(chance))])
        given = {"confidence": {"fallback": 0.0, "alpha": 0.0}, "specexec": {"decay": 1.0}}.get(method.name, {})
        budget = Budget(64, 5, 1, pass_price=price)
        tree = make_policy(method, **given).grow(drafter, context_for(), budget)
        assert tree.drafted == drafter.passes, "what a pass proposed has been paid for"
        return drafter.passes

    free = passes(0.0)
    for price in (0.95, 0.6, 0.3):
        assert passes(price) == min(free, sum(chance**depth >= price for depth in range(5)))
