"""A repeated suffix is drafted once, and unfolds into the tree that drafting it again would have given."""

from __future__ import annotations

import math

import pytest
from contracts.kit import V, context_for, make_policy, scripted_draft, scripted_target
from contracts.proposing import Proposing
from trees.laws import WOR, Costly, drawing, law, paths_of

from specchat.core.budget import Budget
from specchat.core.sampling import Sampling
from specchat.core.tree import ROOT, DrawKind, Guess
from specchat.drafters import DRAFTERS
from specchat.drafters.parts import Parts
from specchat.trees import TREE_POLICIES


def policy(name, **options):
    return make_policy(TREE_POLICIES[name], **options)


def by_last_token(tree, node, width, context):
    """A law of the last token alone: paths that end in the same token go on in the same way."""
    q = law((tree.tokens[node] % 4,), 5)
    return [Guess(token, logprob=math.log(q[token])) for token in q.topk(min(width, 4)).indices.tolist()]


BUDGETS = [Budget(8, 3, 2), Budget(30, 4, 3), Budget(64, 6, 4), Budget(200, 4, 4)]


@pytest.mark.parametrize("budget", BUDGETS, ids=lambda b: f"{b.nodes}-{b.depth}-{b.width}")
def test_unfolding_gives_the_root_paths_that_drafting_everything_gives(budget):
    graph, tree = Proposing(by_last_token), Proposing(by_last_token)
    unfolded = policy("graph", repeat=0).grow(graph, context_for(), budget)
    whole = policy("best_first").grow(Costly(tree), context_for(), budget)
    assert paths_of(unfolded) == paths_of(whole)
    assert sum(map(len, graph.asked)) < sum(map(len, tree.asked))


def test_a_link_needs_as_many_equal_ancestors_as_the_option_says():
    asked = []
    for repeat in (0, 1, 2, 5):
        drafter = Proposing(by_last_token)
        tree = policy("graph", repeat=repeat).grow(drafter, context_for(), Budget(64, 5, 4))
        assert paths_of(tree) == paths_of(
            policy("best_first").grow(Proposing(by_last_token), context_for(), Budget(64, 5, 4))
        )
        asked.append(sum(map(len, drafter.asked)))
    assert asked == sorted(asked)
    assert asked[0] < asked[1] < asked[2]


def test_the_draft_model_reads_fewer_rows_for_a_tree_of_as_many_nodes():
    rows = {}
    for name in ("graph", "best_first"):
        draft, method = scripted_draft(memory=1), DRAFTERS["draft_model"]
        drafter = method.load()(method.make_options({"drawing": "top"}), Parts(scripted_target(), draft))
        context = context_for(Sampling(temperature=0.8))
        drafter.start(context.history)
        before = draft.counters.rows
        tree = policy(name).grow(drafter, context, Budget(64, 5, 8))
        assert tree.drafted == 64
        rows[name] = draft.counters.rows - before
    assert rows["graph"] < rows["best_first"]


def test_the_target_says_after_a_copied_path_what_it_says_after_the_same_text():
    tree = policy("graph", repeat=0).grow(Proposing(by_last_token), context_for(), Budget(40, 4, 3))
    target, context = scripted_target(), context_for()
    target.prefill(context.history[:-1])
    reading = target.read(tree)
    for node in range(len(tree)):
        alone = scripted_target()
        text = [*context.history, *tree.path_tokens(node)]
        alone.prefill(text[:-1])
        assert alone.read(type(tree)(text[-1], V).freeze()).after(ROOT).equal(reading.after(node))


def test_a_copy_is_a_point_and_siblings_differ():
    tree = policy("graph", repeat=0).grow(drawing(WOR, 1), context_for(vocab_size=4, prompt=[1]), Budget(60, 5, 3))
    kinds = set()
    for node in range(len(tree)):
        tokens = [draw.guess.token for draw in tree.draws(node)]
        assert len(tokens) == len(set(tokens))
        of_node = {draw.guess.kind for draw in tree.draws(node)}
        assert len(of_node) <= 1, "a node's children were drawn there or copied, all of them"
        kinds |= of_node
    assert kinds == {WOR, DrawKind.POINT}


def test_a_node_is_never_linked_to_one_on_its_own_path():
    same = Proposing(lambda tree, node, width, context: [Guess(3, logprob=math.log(0.9))])
    tree = policy("graph", repeat=0).grow(same, context_for(prompt=[3, 3]), Budget(6, 6, 1))
    assert max(tree.depths) == 6
    assert len(same.asked) == 6


def test_a_less_likely_node_copies_from_a_likelier_one_and_never_the_other_way():
    def guesses(tree, node, width, context):
        if node == ROOT:
            return [Guess(7, logprob=math.log(0.5)), Guess(8, logprob=math.log(0.4))]
        if tree.tokens[node] == 7:
            return [Guess(9, logprob=math.log(0.2))]
        return [Guess(9 if tree.tokens[node] == 8 else 1, logprob=math.log(0.9))]

    drafter = Proposing(guesses)
    tree = policy("graph", repeat=0).grow(drafter, context_for(), Budget(20, 3, 2))
    likely, unlikely = tree.follow([8, 9])[-1], tree.follow([7, 9])[-1]
    assert likely in drafter.asked[-1]
    assert unlikely not in drafter.asked[-1]
    assert [tree.tokens[child] for child in tree.children(unlikely)] == [1]
