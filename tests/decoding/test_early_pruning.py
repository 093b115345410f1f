"""Early pruning: fewer nodes go through the later layers, and the text stays what it was."""

from __future__ import annotations

import pytest
import torch
from contracts.kit import make_policy

from specchat.core.context import Context
from specchat.core.memory import MemoryLimit
from specchat.core.noise import Noise
from specchat.core.round import Reason
from specchat.core.tree import ROOT, Guess, TokenTree
from specchat.decoding.assemble import assemble, pair_memory, sampling
from specchat.decoding.early_pruning import EarlyHead, EarlyPruning, low_rank_bytes
from specchat.drafters.parts import PairResources
from specchat.models.backends.scripted import ScriptedModel
from specchat.settings import Settings
from specchat.trees import TREE_POLICIES
from tests.models.test_decoder import V, decoder, network, prompt

TREE = {"drafter": "draft_model", "policy": "expansion", "controller": "fixed", "width": 4, "depth": 3, "nodes": 12}


def written(tokens=48, **changes):
    """A text, its rounds, and the node-layers the target spent on it."""
    settings = Settings().but({**TREE, **changes})
    target, draft = decoder(network("llama")), decoder(network("llama, tied"))
    speculator = assemble(settings, target, draft)
    context = Context(prompt(), len(prompt()), V, sampling=sampling(settings), noise=Noise(3))
    speculator.start(context.history)
    rounds = []
    while len(context.history) < len(prompt()) + tokens:
        rounds.append(speculator.round(context))
    return context.history[: len(prompt()) + tokens], rounds, target.counters.node_layers


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize(("layer", "keep"), [(1, 1), (1, 8), (2, 20)])
def test_pruning_never_changes_the_text(temperature, layer, keep):
    plain, _, _ = written(temperature=temperature, controller="off")
    pruned, rounds, _ = written(temperature=temperature, prune_layer=layer, prune_keep=keep)
    assert pruned == plain
    reasons = [reason for round in rounds for reason in round.verdict.reasons]
    assert Reason.PRUNED in reasons


def test_a_node_stays_if_its_token_is_likely_after_its_parent():
    """The head is asked at the parent: what a node itself goes on with says nothing of its own chances."""
    tree = TokenTree(0, V)
    likely, unlikely = tree.add(ROOT, Guess(4)), tree.add(ROOT, Guess(6))
    below = {token: tree.add(likely, Guess(token)) for token in (5, 7)}
    states = torch.zeros(len(tree), V)
    states[ROOT, [4, 9]] = torch.tensor([2.0, 1.0])  # after the root 4 is likeliest, 6 is not among the best two
    states[likely, [7, 8]] = torch.tensor([2.0, 1.0])
    states[unlikely, 6] = 9.0
    states[below[5], 5] = 9.0
    model = ScriptedModel(V, lambda text: torch.zeros(V))
    policy = EarlyPruning(make_policy(TREE_POLICIES["chain"]), EarlyHead(model, 1), 1, 2)
    (hook,) = policy.hooks(tree.freeze())
    assert hook.layers == {0}
    stay = hook.look(0, states, range(len(tree)))
    assert stay == {ROOT, likely, below[7]}


def test_under_a_memory_limit_the_map_is_learnt_where_there_is_room_and_counts():
    settings = Settings().but({**TREE, "prune_layer": 1, "memory": "2GB"})
    target, draft = decoder(network("llama")), decoder(network("llama, tied"))

    def learns(limit_bytes):
        limit = MemoryLimit(limit_bytes, 0, lambda: 0)
        return bool(assemble(settings, target, draft, resources=PairResources(memory=limit)).policy.taps)

    memory = pair_memory(settings, target, (draft,), None)
    unlimited = pair_memory(settings.but({"memory": ""}), target, (draft,), None)
    needed = memory.plain_bytes(target.context_tokens)
    assert needed - unlimited.plain_bytes(target.context_tokens) == low_rank_bytes(target.hidden_size)
    assert learns(needed)
    assert not learns(needed - 1)


def test_what_is_pruned_is_not_computed():
    _, whole, spent = written()
    _, pruned, saved = written(prune_layer=1, prune_keep=2)
    per_round = spent / len(whole), saved / len(pruned)
    assert per_round[1] < per_round[0]
    dropped = sum(len(round.reading.pruned) for round in pruned)
    read = sum(len(round.tree) for round in pruned)
    drafts = sum(len(round.tree) for round in whole)
    assert dropped > 0
    assert read * 3 - dropped * 2 == saved - (spent - drafts * 3), (
        "each dropped node skips the last two of three layers"
    )


def test_a_node_among_the_kept_ones_stays():
    _, rounds, _ = written(prune_layer=1, prune_keep=V)
    assert not any(round.reading.pruned for round in rounds)


def test_plain_rounds_are_not_looked_into():
    _, rounds, _ = written(prune_layer=1, prune_keep=1, controller="off")
    assert all(not round.reading.pruned for round in rounds)
