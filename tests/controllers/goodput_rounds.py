"""What the tests of the goodput controller share: costs, rounds over chains, a controller taught by them."""

import torch

from specchat.controllers.goodput import Goodput
from specchat.controllers.options import GoodputOptions
from specchat.core.budget import Budget
from specchat.core.context import Context
from specchat.core.costs import Costs
from specchat.core.reading import HeadTensors, Reading
from specchat.core.round import Round, RoundTimings, Verdict
from specchat.core.tree import ROOT, Guess, TokenTree

V = 50
ROWS = (1, 2, 4, 8, 16, 32)


def costs(base=1.0, per_row=0.1):
    return Costs(tuple((rows, base + per_row * (rows - 1)) for rows in ROWS))


def controller(given=None, nodes=16, depth=8, memory=32):
    return Goodput(GoodputOptions(memory=memory), Budget(nodes, depth, 1), given or costs())


def context(round_index=0):
    made = Context([1, 2, 3], 2, V)
    made.round = round_index
    return made


def chain(length, logprob=None):
    tree, node = TokenTree(0, V), ROOT
    for token in range(length):
        node = tree.add(node, Guess(token, logprob=logprob))
    return tree.freeze()


def a_round(
    drafted,
    accepted,
    verify_s=None,
    draft_s=0.0,
    passes=0,
    logprob=None,
    given=None,
    extra_rows=0,
    learn_s=0.0,
    budget=None,
):
    tree = chain(drafted, logprob)
    path = tuple(range(1, accepted + 1))
    reading = Reading(tuple(range(len(tree))), HeadTensors(torch.zeros(len(tree), V)), frozenset(range(len(tree))))
    seconds = (given or costs()).verify_s(len(tree) + extra_rows) if verify_s is None else verify_s
    verdict = Verdict(path, 9, tree)
    timings = RoundTimings(draft_s, seconds, learn_s, learn_s)
    emitted = verdict.emitted
    budget = budget or Budget(drafted)
    return Round(0, 3, [1, 2, 3], budget, tree, reading, verdict, emitted, passes, timings, extra_rows)


def judged(tree, path, bonus=9):
    """A round over this tree in which this path stood."""
    reading = Reading(tuple(range(len(tree))), HeadTensors(torch.zeros(len(tree), V)), frozenset(range(len(tree))))
    verdict = Verdict(path, bonus, tree)
    timings = RoundTimings(0.0, costs().verify_s(len(tree)), 0.0)
    emitted = verdict.emitted
    return Round(0, 3, [1, 2, 3], Budget(8), tree, reading, verdict, emitted, 0, timings)


def taught(subject, rate, rounds=400, seed=0, **about):
    """Rounds in which every draft token stands with the same probability, as deep as the controller asks."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(rounds):
        depth = 8
        accepted = 0
        while accepted < depth and float(torch.rand((), generator=generator)) < rate:
            accepted += 1
        subject.observe(a_round(depth, accepted, **about))
    return subject


def plan_and_fail(subject, index):
    plan = subject.plan(context(index))
    subject.observe(a_round(min(plan.nodes, plan.depth), 0))
    return plan
