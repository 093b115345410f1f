"""Streams: extra rows that enter a pass at one of its last layers, see what they may, and leave all others alone."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from contracts.kit import context_for, fixed_speculator, plain_text, random_tree, reply, speak
from contracts.models import BUILDERS, HIDDEN, LAYERS, V, shared_network
from contracts.pass_requests import requested
from contracts.tiny_networks import tiny_resources, tiny_trained

from specchat.core.budget import Budget
from specchat.core.request import Adapter, Entry, ExtraRow
from specchat.core.tree import ROOT, Guess, TokenTree
from specchat.drafters import DRAFTERS
from specchat.drafters.parts import Parts

PREFIX = [1, 7, 30, 7, 2, 59, 14, 7, 30, 11, 5, 5, 41]
STREAMS = 3
SIZES = {
    "llama": {"q": (32, 32), "k": (16, 32), "v": (16, 32), "o": (32, 32)},
    "gemma3_text": {"q": (64, 32), "k": (32, 32), "v": (32, 32), "o": (32, 64)},
}


@pytest.fixture(params=list(BUILDERS))
def path(request):
    return request.param


def drawn(*shape, seed=0):
    return 0.3 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


EMBEDDINGS = drawn(STREAMS, HIDDEN, seed=4)


def entry(first):
    return Entry(first, drawn(HIDDEN, HIDDEN, seed=5))


def adapter(first, family="llama"):
    return Adapter({
        (layer, name): (drawn(3, inputs, seed=layer), drawn(outputs, 3, seed=9 + layer))
        for layer in range(first, LAYERS[family])
        for name, (outputs, inputs) in SIZES[family].items()
    })  # fmt: skip


def streams(nodes, given, embeddings=EMBEDDINGS, acts=None, says=True):
    """The streams of these nodes, those of a node one after the other."""
    return [
        ExtraRow(node, embedding, len(embeddings) * place + number - 1 if number else None, acts, given, says)
        for place, node in enumerate(nodes)
        for number, embedding in enumerate(embeddings)
    ]


@cache
def model_of(path, family):
    """One for all: torch rounds products by where their rows lie in memory."""
    return BUILDERS[path](shared_network(family), 256)


def read(path, tree, extra_rows=(), family="llama", **request):
    model = model_of(path, family)
    model.prefill(())
    model.prefill(PREFIX)
    before = model.counters.node_layers
    reading = model.read(tree, request=requested(extra_rows, **request))
    return model, reading, model.counters.node_layers - before


@torch.no_grad()
def truth(text, given, family):
    """(streams, V) by transformers' layers over a text whose last rows are replaced before the first streamed layer."""
    network = shared_network(family)
    rows = torch.cat([network.get_input_embeddings()(torch.tensor(text)), torch.zeros(STREAMS, HIDDEN)])

    def replace(module, arguments):
        hidden = arguments[0].clone()
        state = hidden[0, len(text) - 1]
        hidden[0, len(text) :] = state + given.matrix @ state + EMBEDDINGS
        return hidden, *arguments[1:]

    hook = network.get_decoder().layers[given.layer].register_forward_pre_hook(replace)
    try:
        return network(inputs_embeds=rows[None], use_cache=False).logits[0, len(text) :]
    finally:
        hook.remove()


@pytest.mark.parametrize("family", SIZES)
@pytest.mark.parametrize("first", [1, 2])
def test_a_stream_says_what_the_last_layers_make_of_its_nodes_state(path, first, family):
    tree, given = random_tree(V, 8, 8), entry(first)
    for node in (ROOT, 4):
        _, reading, _ = read(path, tree, streams([7, node], given), family)
        said = reading.extra_row_logits[STREAMS:]
        expected = truth([*PREFIX, tree.tokens[0], *tree.path_tokens(node)], given, family)
        if path == "native":
            assert (said - expected).norm() < 0.1 * expected.norm()
        else:
            torch.testing.assert_close(said, expected, atol=2e-4, rtol=2e-4)


def test_a_stream_sees_the_streams_before_it_and_none_other(path):
    tree, given, acts = random_tree(V, 8, 8), entry(1), adapter(1)
    _, before, _ = read(path, tree, streams([2, 4], given, acts=acts))
    changed = streams([2, 4], given, acts=acts)
    middle = changed[STREAMS + 1]
    changed[STREAMS + 1] = ExtraRow(4, middle.embedding + 1.0, middle.after, acts, given)
    _, after, _ = read(path, tree, changed)
    assert torch.equal(before.logits, after.logits)
    same = [torch.equal(*rows) for rows in zip(before.extra_row_logits, after.extra_row_logits, strict=True)]
    assert same == [True, True, True, True, False, False], "the first stream of node 4 comes before, node 2's elsewhere"


def test_a_stream_sees_its_nodes_path_and_no_other_node(path):
    given, said = entry(1), []
    for other, above in ((7, 5), (9, 5), (7, 6)):
        tree = TokenTree(3, V)
        node = tree.add(tree.add(ROOT, Guess(above)), Guess(8))
        tree.add(tree.add(ROOT, Guess(other)), Guess(2))
        said.append(read(path, tree.freeze(), streams([node], given))[1].extra_row_logits)
    assert torch.equal(said[0], said[1]), "a sibling of the node above is not seen"
    assert not torch.equal(said[0], said[2]), "the node above is"


def test_the_rows_of_the_tree_say_the_same_with_streams_and_without(path):
    """In C bit for bit; torch rounds otherwise where there are more rows, but what these hold changes nothing."""
    tree, given = random_tree(V, 8, 8), entry(1)
    nodes = range(len(tree))
    _, plain, _ = read(path, tree, taps=range(3))
    _, streamed, _ = read(path, tree, streams(nodes, given), taps=range(3))
    _, adapted, _ = read(path, tree, streams(nodes, given, acts=adapter(1)), taps=range(3))
    assert torch.equal(adapted.logits, streamed.logits)
    assert not torch.equal(adapted.extra_row_logits, streamed.extra_row_logits)
    assert not streamed.extra_row_states[0].any(), "no stream is there yet"
    for one, other in ((plain.logits, streamed.logits), *((plain.taps[i], streamed.taps[i]) for i in range(3))):
        if path == "native":
            assert torch.equal(one, other)
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("path", [path for path in BUILDERS if path != "reference"])
@pytest.mark.parametrize("first", [1, 2])
def test_a_stream_costs_the_layers_it_runs_through_and_a_mask_costs_all(path, first):
    tree, count = random_tree(V, 8, 8), STREAMS * 9
    nodes = range(len(tree))
    costs = [
        read(path, tree, rows)[2]
        for rows in ((), streams(nodes, entry(first)), streams(nodes, None))
    ]  # fmt: skip
    layers = LAYERS["llama"]
    assert costs == [9 * layers, 9 * layers + count * (layers - first), (9 + count) * layers]


@pytest.mark.parametrize("path", [path for path in BUILDERS if path != "reference"])
def test_no_stream_enters_below_a_dropped_node(path):
    tree, given, acts = random_tree(V, 8, 8), entry(1), adapter(1)
    kept = tree.path(4)
    rows = streams([ROOT, kept[0], 7, 4], given, acts=acts, says=False)
    _, whole, _ = read(path, tree, rows)
    _, pruned, cost = read(path, tree, rows, look=lambda layer, hidden, nodes: kept if layer == 0 else None)
    alive = len({ROOT, *kept})
    assert 7 not in pruned.alive
    assert cost == 9 + 2 * (alive + 3 * STREAMS)
    gone = slice(2 * STREAMS, 3 * STREAMS)
    assert not pruned.extra_row_last[gone].any()
    stays = [number for number in range(len(rows)) if number not in range(*gone.indices(len(rows)))]
    torch.testing.assert_close(pruned.extra_row_last[stays], whole.extra_row_last[stays], atol=1e-4, rtol=1e-4)


def test_streams_whose_logits_are_not_wanted_come_back_as_states(path):
    tree, given = random_tree(V, 8, 8), entry(1)
    _, said, _ = read(path, tree, streams([2, 4], given))
    model, quiet, _ = read(path, tree, streams([2, 4], given, says=False))
    torch.testing.assert_close(quiet.logits, said.logits, atol=1e-5, rtol=1e-5)
    if path == "reference":
        assert torch.equal(quiet.extra_row_logits, said.extra_row_logits), "it computes all logits"
        return
    assert quiet.extra_row_logits is None
    torch.testing.assert_close(model.head(quiet.extra_row_last), said.extra_row_logits, atol=1e-5, rtol=1e-5)


def test_masks_and_streams_of_other_layers_stand_in_one_pass(path):
    tree = random_tree(V, 8, 8)
    kinds = [ExtraRow(4, EMBEDDINGS[n], None, adapter(n), entry(n) if n else None) for n in range(STREAMS)]
    alone = [read(path, tree, [row])[1].extra_row_logits[0] for row in kinds]
    for order in ([2, 0, 1], [1, 2, 0]):
        _, together, _ = read(path, tree, [kinds[number] for number in order])
        for number, said in zip(order, together.extra_row_logits, strict=True):
            torch.testing.assert_close(said, alone[number], atol=1e-4, rtol=1e-4)


# ------------------------------------------------------------------------------------------------ drafting


def drafter_of(target, **options):
    method, trained = DRAFTERS["speculative_streaming"], tiny_trained("speculative_streaming", target)
    parts = Parts(target, trained=trained, resources=tiny_resources(target))
    return method.load()(method.make_options(options), parts)


def test_every_node_has_streams_so_that_every_round_drafts_in_the_targets_own_pass(path):
    model = BUILDERS[path](shared_network("llama"), 256)
    drafter, context = drafter_of(model), context_for(vocab_size=V)
    before, spent = model.counters.passes, model.counters.node_layers
    text, rounds = speak(fixed_speculator(model, drafter, "chain", Budget(4, 4, 1)), 30, context)
    assert text == plain_text(BUILDERS[path](shared_network("llama"), 256), 30)
    assert [round.extra_rows for round in rounds] == [3 * len(round.tree) for round in rounds]
    assert model.counters.passes - before == len(rounds), "the first reads the short prompt, too"
    assert sum(round.draft_passes for round in rounds) == 0
    nodes, rows = sum(len(round.tree) for round in rounds), sum(round.extra_rows for round in rounds)
    read = len(context_for().history) - 1 + nodes
    if path != "reference":
        assert model.counters.node_layers - spent == 3 * read + 2 * rows, "streams run through two of three layers"
    assert any(len(round.emitted) - 1 < round.tree.drafted for round in rounds[:-1]), "some guesses were refused"
    assert [round.tree.drafted for round in rounds] == [0] + [3] * (len(rounds) - 1), "one for every stream"


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_with_early_pruning_less_is_computed_and_the_text_stays(path, temperature):
    settings = {"drafter": "speculative_streaming", "controller": "fixed", "nodes": 8, "depth": 3, "width": 3}
    settings |= {"max_tokens": 24, "temperature": temperature}
    spent, texts = [], []
    for changes in ({}, {"prune_layer": 1, "prune_keep": 2}, {"controller": "off"}):
        model = BUILDERS[path](shared_network("llama"), 256)
        said = reply(model, **{**settings, **changes})
        texts.append(said.tokens)
        spent.append(model.counters.node_layers / model.counters.rows)
    assert texts[0] == texts[1] == texts[2]
    assert spent[1] < spent[0] or path == "reference"


def test_streams_and_masks_draft_together(path):
    settings = {"controller": "fixed", "nodes": 8, "depth": 3, "max_tokens": 24, "drafter": "merge"}
    settings["method_options"] = {"merge.of": "speculative_streaming,mtp"}
    texts = [
        reply(BUILDERS[path](shared_network("llama"), 256), **{**settings, **changes}).tokens
        for changes in ({}, {"controller": "off"})
    ]
    assert texts[0] == texts[1]
