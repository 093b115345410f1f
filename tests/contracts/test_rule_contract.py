"""What every acceptance rule of the table promises: a verdict about the whole tree that fits the reading."""

from __future__ import annotations

import pytest
from contracts.kit import PROMPT, V, context_for, every, make_rule, random_tree, scripted_target, target_says
from contracts.pass_requests import requested
from rows import each_row

from specchat.acceptance import ACCEPTANCE_RULES
from specchat.core.round import Reason
from specchat.core.sampling import Sampling
from specchat.core.tree import ROOT, Guess, TokenTree

pytestmark = pytest.mark.parametrize("method", every(ACCEPTANCE_RULES))

SAMPLINGS = {
    "greedy": Sampling(),
    "penalised": Sampling(repetition_penalty=1.4, presence_penalty=0.3),
    "warm": Sampling(temperature=0.8),
    "all": Sampling(0.8, 15, 0.9, 0.02, 1.2, 0.1, 0.2),
}


def judged(method, sampling, tree, seed=0, on_layer=None):
    context, target = context_for(sampling, seed), scripted_target()
    target.prefill(context.history[:-1])
    reading = target.read(tree, request=requested(look=on_layer))
    return make_rule(method).judge(tree, reading, context), reading


def check_verdict(tree, verdict):
    node = ROOT
    for child in verdict.path:
        assert tree.parents[child] == node, "the path goes down, child by child"
        node = child
    assert verdict.bonus is not None
    assert 0 <= verdict.bonus < V
    assert len(verdict.reasons) == len(tree)
    assert verdict.reasons[ROOT] is Reason.ACCEPTED
    standing = {ROOT, *verdict.path}
    for node in range(1, len(tree)):
        reason = verdict.reasons[node]
        assert (reason is Reason.ACCEPTED) == (node in standing)
        if reason is Reason.REJECTED:
            assert tree.parents[node] in standing
        if reason is Reason.UNREACHED:
            assert tree.parents[node] not in standing
    assert verdict.emitted == (*(tree.tokens[node] for node in verdict.path), verdict.bonus)


@each_row("sampling", SAMPLINGS.values(), ids=SAMPLINGS.keys())
@each_row("seed", range(6))
def test_the_verdict_is_a_path_a_bonus_and_a_reason_for_every_node(method, sampling, seed):
    tree = random_tree(V, 30, seed, root=PROMPT[-1])
    verdict, _ = judged(method, sampling, tree, seed)
    check_verdict(tree, verdict)
    assert Reason.CUT not in verdict.reasons
    assert Reason.PRUNED not in verdict.reasons


@each_row("sampling", SAMPLINGS.values(), ids=SAMPLINGS.keys())
def test_a_tree_of_the_root_alone_is_plain_decoding(method, sampling):
    verdict, _ = judged(method, sampling, TokenTree(PROMPT[-1], V).freeze())
    assert verdict.path == ()
    assert verdict.reasons == (Reason.ACCEPTED,)
    assert verdict.bonus is not None


@pytest.mark.parametrize("sampling", [SAMPLINGS["greedy"], SAMPLINGS["warm"]], ids=["greedy", "warm"])
def test_with_all_tokens_proposed_a_child_of_the_root_always_stands(method, sampling):
    tree = TokenTree(PROMPT[-1], V)
    for token in range(V):
        tree.add(ROOT, Guess(token))
    verdict, _ = judged(method, sampling, tree.freeze())
    assert len(verdict.path) == 1
    check_verdict(tree, verdict)


def test_greedy_follows_the_most_likely_token(method):
    says, tree, text, node = target_says(), TokenTree(PROMPT[-1], V), list(PROMPT), ROOT
    for _ in range(4):
        token = int(says(text).argmax())
        tree.add(node, Guess((token + 1) % V))
        node = tree.add(node, Guess(token))
        text.append(token)
    verdict, _ = judged(method, Sampling(), tree.freeze())
    if make_rule(method).lossless:
        assert verdict.path == tree.path(node)
        assert verdict.bonus == int(says(text).argmax())


def test_the_walk_stops_at_a_dropped_child_and_goes_on_to_the_same_token(method):
    says, tree = target_says(), TokenTree(PROMPT[-1], V)
    best = int(says(PROMPT).argmax())
    child = tree.add(ROOT, Guess(best))
    below = tree.add(child, Guess(1))
    other = tree.add(ROOT, Guess((best + 1) % V))
    verdict, _ = judged(method, Sampling(), tree.freeze(), on_layer=lambda layer, hidden, nodes: set(nodes) - {child})
    assert verdict.path == ()
    assert verdict.bonus == best
    assert [verdict.reasons[n] for n in (child, below, other)] == [Reason.PRUNED, Reason.PRUNED, Reason.REJECTED]


@each_row("seed", range(4))
def test_judging_twice_gives_the_same_verdict(method, seed):
    tree = random_tree(V, 20, seed, root=PROMPT[-1])
    first, _ = judged(method, SAMPLINGS["all"], tree, seed)
    second, _ = judged(method, SAMPLINGS["all"], tree, seed)
    assert first == second


@each_row("count", range(6))
def test_a_cut_verdict_emits_exactly_the_first_tokens(method, count):
    says, tree, text, node = target_says(), TokenTree(PROMPT[-1], V), list(PROMPT), ROOT
    for _ in range(4):
        node = tree.add(node, Guess(int(says(text).argmax())))
        text.append(tree.tokens[node])
    verdict, _ = judged(method, Sampling(), tree.freeze())
    whole, cut = verdict.emitted, verdict.cut(count)
    assert cut.emitted == whole[:count]
    assert (cut.bonus is None) == (count < len(whole))
    assert cut.reasons.count(Reason.CUT) == len(verdict.path) - len(cut.path)


def test_the_table_tells_the_truth_about_losslessness(method):
    assert make_rule(method).lossless == (method.lossless != "no")
