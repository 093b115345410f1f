"""The part of a cache that each layer holds: what brute force finds, on every path, and of more use than any other."""

from __future__ import annotations

import pytest
import torch
from contracts.kit import reply
from contracts.models import BUILDERS, V, shared_network, tiny_network

from specchat.core.drafting_networks import HoldsPartsByLayer
from specchat.drafters import sparse_context as cache_parts
from specchat.drafters.sparse_context import PartByStates, part_of
from specchat.models.decoder import eager

TEXT = torch.randint(3, V, (300,), generator=torch.Generator().manual_seed(5)).tolist()
CHUNK, BUDGET = 8, 96


def chosen_by(model, monkeypatch):
    """(layers, key heads, n) positions that a twin of the model holds for drafting after the text."""
    view, found = model.with_new_cache(), []
    assert isinstance(view, HoldsPartsByLayer)
    monkeypatch.setattr(view, "copy_rows_by_layer", lambda text, positions: found.append(positions))
    part_of(view, model.layers).copy_rows_from(TEXT, BUDGET)
    return found[0]


def brute_force(queries, keys):
    """The positions of one head of keys, written down the long way.

    Args:
        queries: (heads that share the keys, head_dim) of the last token.
        keys: (tokens, head_dim) of those before it.
    """
    tokens = len(keys)
    recent = (tokens - BUDGET // 4) // CHUNK * CHUNK

    def score(start):
        found = 0.0
        for query in queries:
            mean = sum(keys[start + i] for i in range(CHUNK)) / CHUNK
            found += float((mean * query).sum())
        return found

    best = sorted(range(CHUNK, recent, CHUNK), key=score, reverse=True)
    starts = [0, *best[: (BUDGET - CHUNK - (tokens - recent)) // CHUNK]]
    return sorted({start + i for start in starts for i in range(CHUNK)} | set(range(recent, tokens)))


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_every_head_of_keys_holds_the_chunks_that_brute_force_finds(family, monkeypatch):
    model, looked = BUILDERS["decoder"](shared_network(family), 512), []
    fused = eager.fused
    model.prefill(TEXT[:-1])

    def noting(queries, keys, values, mask):
        looked.append((queries[0].clone(), keys[:, : len(TEXT) - 1].clone()))
        return fused(queries, keys, values, mask)

    monkeypatch.setattr(eager, "fused", noting)
    chosen = chosen_by(model, monkeypatch)
    heads = [
        [brute_force(*each) for each in zip(queries.chunk(len(keys)), keys, strict=True)] for queries, keys in looked
    ]
    assert chosen.tolist() == heads
    distinct = {tuple(positions) for layer in heads for positions in layer}
    assert len(distinct) == model.layers * len(looked[0][1]), "layers and heads differ"


@pytest.mark.parametrize("path", [name for name in BUILDERS if name not in ("reference", "decoder")])
def test_every_path_chooses_what_torch_chooses(path, monkeypatch):
    """Weights of 8 bits move what is nearly as good: of a layer's chunks one may differ."""
    chosen = []
    for each in (path, "decoder"):
        model = BUILDERS[each](shared_network("llama"), 512)
        model.prefill(TEXT[:-1])
        chosen.append(chosen_by(model, monkeypatch).tolist())
    pairs = [pair for layers in zip(*chosen, strict=True) for pair in zip(*layers, strict=True)]
    for own, torchs in pairs:
        assert len(set(own) - set(torchs)) <= (CHUNK if path == "native" else 0)


def test_a_text_within_the_budget_is_borrowed_whole_without_a_pass():
    model = BUILDERS["decoder"](shared_network("llama"), 512)
    model.prefill(TEXT[:BUDGET])
    view = model.with_new_cache()
    part_of(view, model.layers).copy_rows_from(TEXT[: BUDGET + 1], BUDGET)
    assert view.counters.passes == 0
    assert view.rows.held == BUDGET


def test_what_the_target_does_not_hold_is_left_to_the_view():
    model = BUILDERS["decoder"](shared_network("llama"), 512)
    for held in (200, 40, 0):
        model.prefill([])
        model.prefill(TEXT[:held])
        view = model.with_new_cache()
        part_of(view, model.layers).copy_rows_from(TEXT, BUDGET)
        assert view.cached(TEXT) == held
        assert BUDGET - CHUNK < view.rows.held <= BUDGET if held > BUDGET else view.rows.held == held


def test_a_target_that_tells_no_keys_has_chunks_compared_by_states():
    model = BUILDERS["reference"](shared_network("llama"), 512)
    part = part_of(model.with_new_cache(), model.layers)
    assert isinstance(part, PartByStates)
    assert part.hidden_state_sink is not None


def finding_network():
    """Its second layer's queries answer keys of the same token wherever that stands; the first looks at nothing."""
    network = tiny_network("smollm3")
    first, last = network.get_decoder().layers
    with torch.no_grad():
        first.self_attn.o_proj.weight.zero_()
        keys = last.self_attn.k_proj.weight.chunk(2)
        last.self_attn.q_proj.weight.copy_(8 * torch.cat([keys[0], keys[0], keys[1], keys[1]]))
        last.self_attn.o_proj.weight.mul_(3)
    return network


def shuffled(choose):
    """The same choice by the scores of other chunks."""

    def choosing(tokens, budget, recent, size, likeness):
        def other(first, end):
            scores = likeness(first, end)
            return scores[..., torch.randperm(scores.shape[-1], generator=torch.Generator().manual_seed(1))]

        return choose(tokens, budget, recent, size, other)

    return choosing


def test_acceptance_falls_with_the_budget_and_without_true_scores(monkeypatch):
    network, text = finding_network(), [token for token in TEXT[:40] for _ in range(CHUNK)]

    def rate(budget):
        options = {"budget": budget, "refresh": 1, "below": "none"}
        given = {f"sparse_context.{name}": value for name, value in options.items()}
        settings = {"drafter": "sparse_context", "policy": "chain", "controller": "fixed", "temperature": 0.9}
        sizes = {"width": 1, "depth": 1, "nodes": 1, "max_tokens": 50, "method_options": given}
        return reply(BUILDERS["decoder"](network, 512), prompt=text, **settings, **sizes).ledger.acceptance_rate

    true = [rate(budget) for budget in (512, 96, 32)]
    assert true[0] == 1.0
    assert true[0] >= true[1] > true[2]
    monkeypatch.setattr(cache_parts, "chunk_positions", shuffled(cache_parts.chunk_positions))
    assert rate(96) < true[1] - 0.1
