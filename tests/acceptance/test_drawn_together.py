"""Following tokens that were drawn together is following tokens drawn one by one."""

import pytest
import torch
from contracts.kit import context_for, make_rule, random_tree

from specchat.acceptance import ACCEPTANCE_RULES
from specchat.core import sampling as sampling_module
from specchat.core.reading import HeadTensors, Reading
from specchat.core.sampling import Sampling
from specchat.core.tree import ROOT

V = 6


@pytest.mark.parametrize(
    "sampling", [Sampling(), Sampling(presence_penalty=1.0), Sampling(0.9, top_p=0.95), Sampling(1)]
)
@pytest.mark.parametrize("pruned", [False, True])
def test_a_walk_over_tokens_drawn_together_is_the_lazy_walk(sampling, pruned):
    rule = make_rule(ACCEPTANCE_RULES["follow"])
    walked = 0
    for seed in range(30):
        tree = random_tree(V, 14, seed)
        says = 2 * torch.randn(len(tree), V, generator=torch.Generator().manual_seed(seed))
        dead = {len(tree) - 1} if pruned and len(tree) > 1 else set()
        alive = frozenset(range(len(tree))) - dead
        reading = Reading(tuple(range(len(tree))), HeadTensors(says), alive, dict.fromkeys(dead, 0))
        context = context_for(sampling, seed, V, [1, 3, 1])
        lazy = rule.judge(tree, reading, context)
        token_after = rule.drawn_together(tree, reading, context)
        node = ROOT
        for child in (*lazy.path, None):
            drawn = token_after(node)
            assert drawn == (lazy.bonus if child is None else tree.tokens[child])
            node = child
        walked += len(lazy.path)
    assert walked > 0, "some tokens were accepted"


def test_a_row_that_needs_a_wider_look_is_drawn_by_itself(monkeypatch):
    monkeypatch.setattr(sampling_module, "HEAD", 2)
    rule = make_rule(ACCEPTANCE_RULES["follow"])
    tree = random_tree(V, 14, 1)
    says = torch.zeros(len(tree), V)
    reading = Reading(tuple(range(len(tree))), HeadTensors(says), frozenset(range(len(tree))))
    context = context_for(Sampling(1.0, top_p=0.99), 1, V, [1, 3, 1])
    token_after = rule.drawn_together(tree, reading, context)
    assert token_after(ROOT) == rule.judge(tree, reading, context).emitted[0]
