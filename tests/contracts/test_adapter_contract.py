"""Extra rows with low-rank adapters say what merged weights would make them say, and all other rows keep their bits."""

from __future__ import annotations

import copy
from functools import cache

import pytest
import torch
from contracts.kit import random_tree
from contracts.models import BUILDERS, HIDDEN, V, shared_network
from contracts.pass_requests import requested
from rows import each_row
from transformers import DynamicCache

from specchat.core.request import Adapter, ExtraRow
from specchat.core.tree import TokenTree
from specchat.errors import ModelError
from specchat.models.weights.families import LLAMA

PREFIX = [1, 7, 30, 7, 2, 59, 14, 7, 30, 11, 5, 5, 41]
SIZES = {"q": (32, 32), "k": (16, 32), "v": (16, 32), "o": (32, 32), "gate": (48, 32), "up": (48, 32), "down": (32, 48)}
GEMMA = SIZES | {"q": (64, 32), "k": (32, 32), "v": (32, 32), "o": (32, 64)}
SETS = {
    "all": [(layer, name) for layer in range(3) for name in SIZES],
    "queries": [(0, "q"), (2, "k")],
    "gates": [(1, "gate"), (2, "up")],
    "outputs": [(0, "o"), (1, "down"), (2, "v")],
}
MASK = torch.linspace(-0.5, 0.5, HIDDEN)


@pytest.fixture(params=list(BUILDERS))
def path(request):
    return request.param


def adapter(chosen, seed=0, rank=3, sizes=SIZES):
    made = torch.Generator().manual_seed(seed)

    def factor(*shape):
        return 0.3 * torch.randn(*shape, generator=made)

    return Adapter(
        {(layer, name): (factor(rank, sizes[name][1]), factor(sizes[name][0], rank)) for layer, name in chosen}
    )


def merged(given, family):
    """The network with the adapter's products added to its weights."""
    network = copy.deepcopy(shared_network(family))
    for (layer, name), (down, up) in given.factors.items():
        product = network.get_decoder().layers[layer].get_submodule(LLAMA.hub_names[name])
        with torch.no_grad():
            product.weight.add_(up @ down)
    return network


@torch.no_grad()
def truth(text, extra_rows, family):
    """(extra rows, V): a chain of extra rows behind a text, each run through its own network over the same cache."""
    cache, said = DynamicCache(), []
    shared_network(family)(input_ids=torch.tensor([text]), past_key_values=cache, use_cache=True)
    for given in extra_rows:
        network = shared_network(family) if given is None else merged(given, family)
        out = network(inputs_embeds=MASK[None, None], past_key_values=cache, use_cache=True)
        said.append(out.logits[0, -1])
    return torch.stack(said)


@cache
def said_by_networks(chosen, family, sizes):
    """What the rows of the test below are to say, for all model paths."""
    tree = random_tree(V, 8, 8)
    one, other = adapter(chosen, sizes=dict(sizes)), adapter(chosen, 1, 5, dict(sizes))
    root = [*PREFIX, tree.tokens[0]]
    behind = truth([*root, *tree.path_tokens(4)], [one, other, None], family)
    return torch.cat([behind, truth(root, [None], family)])


@each_row(("family", "sizes"), [("llama", SIZES), ("gemma3_text", GEMMA)], ids=["llama", "gemma3"])
@each_row("chosen", SETS.values(), ids=SETS.keys())
def test_a_rider_with_an_adapter_says_what_merged_weights_would_make_it_say(path, chosen, family, sizes):
    model, tree = BUILDERS[path](shared_network(family), 256), random_tree(V, 8, 8)
    one, other = adapter(chosen, sizes=sizes), adapter(chosen, 1, 5, sizes)
    extra_rows = [ExtraRow(4, MASK, adapter=one), ExtraRow(4, MASK, 0, other), ExtraRow(4, MASK, 1), ExtraRow(0, MASK)]
    model.prefill(PREFIX)
    said = model.read(tree, request=requested(extra_rows)).extra_row_logits
    expected = said_by_networks(tuple(chosen), family, tuple(sizes.items()))
    if path != "native":
        torch.testing.assert_close(said, expected, atol=2e-4, rtol=2e-4)
        return
    # Native products are rounded: what they say is much nearer to the truth than to saying nothing of the adapter.
    without = said_by_networks((), family, tuple(sizes.items()))
    assert (said[:2] - expected[:2]).norm() < 0.25 * (without[:2] - expected[:2]).norm()
    assert (said - expected).norm() < 0.1 * expected.norm()


@each_row("chosen", SETS.values(), ids=SETS.keys())
def test_rows_without_an_adapter_keep_their_bits(path, chosen):
    model, tree = BUILDERS[path](shared_network("llama"), 256), random_tree(V, 8, 8)
    readings = []
    for given in (adapter(chosen), None):
        model.prefill(())
        model.prefill(PREFIX[:8])  # read along with the tree
        extra_rows = [ExtraRow(3, MASK), ExtraRow(4, MASK, adapter=given), ExtraRow(5, MASK)]
        readings.append(model.read(tree, request=requested(extra_rows, taps=range(3))))
        model.keep(tree.path(len(tree) - 1))
    adapted, plain = readings
    assert not torch.equal(adapted.extra_row_logits[1], plain.extra_row_logits[1])
    for one, two in ((adapted.logits, plain.logits), *((adapted.taps[i], plain.taps[i]) for i in range(3))):
        assert torch.equal(one, two)
    assert torch.equal(adapted.extra_row_logits[[0, 2]], plain.extra_row_logits[[0, 2]])
    assert all(torch.equal(adapted.text_states.layers[i], plain.text_states.layers[i]) for i in range(3))


def test_an_adapter_stays_with_its_rider_when_nodes_are_dropped(path):
    model, tree = BUILDERS[path](shared_network("llama"), 256), random_tree(V, 8, 8)
    extra_rows = [ExtraRow(0, MASK), ExtraRow(0, MASK, adapter=adapter(SETS["all"]))]
    said = []
    for look in (None, lambda layer, hidden, nodes: [0, 1] if layer == 0 else None):
        model.prefill(PREFIX)
        said.append(model.read(tree, request=requested(extra_rows, look=look)).extra_row_logits)
    torch.testing.assert_close(said[0], said[1], atol=1e-5, rtol=1e-5)


def test_on_a_view_an_adapter_acts_on_what_is_left(path):
    model, tree = BUILDERS[path](shared_network("llama"), 256), TokenTree(3, V).freeze()
    view = model.view(skip_attention=(0,), skip_mlp=(1,))
    left = adapter([(layer, name) for layer, name in SETS["all"] if (layer, name) not in gone()])
    everything = Adapter({**adapter(gone(), seed=2).factors, **left.factors})
    said = []
    for given in (left, everything):
        view.prefill(PREFIX)
        said.append(view.read(tree, request=requested([ExtraRow(0, MASK, adapter=given)])).extra_row_logits)
    assert torch.equal(said[0], said[1])


def gone():
    return [(0, name) for name in "qkvo"] + [(1, name) for name in ("gate", "up", "down")]


BAD = {
    "no product": ({(0, "gates"): (torch.zeros(2, 32), torch.zeros(48, 2))}, "'gates'"),
    "no layer": ({(7, "q"): (torch.zeros(2, 32), torch.zeros(32, 2))}, "layer 7"),
    "inputs": (
        {(0, "q"): (torch.zeros(2, 31), torch.zeros(32, 2))},
        r"'q' of layer 0 has factors \(2, 31\) and \(32, 2\)",
    ),
    "outputs": ({(0, "down"): (torch.zeros(2, 48), torch.zeros(48, 2))}, "'down' of layer 0"),
    "two ranks": ({(0, "q"): (torch.zeros(2, 32), torch.zeros(32, 3))}, "rank"),
    "no rank": ({(0, "q"): (torch.zeros(0, 32), torch.zeros(32, 0))}, "rank of 1"),
    "too high a rank": ({(0, "q"): (torch.zeros(1025, 32), torch.zeros(32, 1025))}, "to 1024"),
}


@each_row(("factors", "said"), BAD.values(), ids=BAD.keys())
def test_an_adapter_that_does_not_fit_is_refused_by_name(path, factors, said):
    model = BUILDERS[path](shared_network("llama"), 256)
    with pytest.raises(ModelError, match=said):
        model.read(TokenTree(3, V).freeze(), request=requested([ExtraRow(0, MASK, adapter=Adapter(factors))]))
