"""Several models in one process keep their compiled, recorded passes: each has compiled functions of its own."""

from __future__ import annotations

import pytest
import torch
from contracts.kit import Letters
from cuda_graph_stand_in import FrozenRecorder
from test_choose_cuda import Repeating, leave_guards_unmeasured
from test_cuda_graphs import assert_same, bush, chain, eager
from test_decoder import V, prompt, source_of
from torch._dynamo.utils import counters
from wide_networks import wide_network

from specchat.engine.server.loaded_pair import LoadedPair
from specchat.models.decoder.decoder import Decoder
from specchat.models.decoder.fused_ops import FusedOps, add_norm, best_ops, compiled
from specchat.models.decoder.layer_weights import Builder
from specchat.models.decoder.recorded_network import GraphNetwork, recorded_network
from specchat.models.decoder.shape import Shape
from specchat.models.model_loading import Loaded


@pytest.fixture
def no_variants(monkeypatch):
    """Dynamo as in a new process, with nothing compiled."""
    leave_guards_unmeasured(monkeypatch)
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def loaded(width, ops):
    network = wide_network(width, 2 * width, 2, 4)
    weights = Builder(Shape.of(network.config), source_of(network), "float32", torch.device("cpu")).build()
    recorded, why = recorded_network(weights, Repeating, ops)
    assert why == ""
    assert isinstance(recorded, GraphNetwork)
    return recorded


def read_all_sizes(network):
    model = Decoder(network, 3000)
    for length in (30, 1100, 2100):
        model.fill_for_benchmark(length)
        for tree in (chain(0), chain(1), chain(4), bush(6)):
            model.read(tree)
            model.keep([])
    skipping = model.view(skip_attention=[0], skip_mlp=[1])
    skipping.fill_for_benchmark(100)
    skipping.read(chain(4))
    skipping.keep([])


def test_compiled_passes_stay_in_use_with_several_models_and_after_a_reload(no_variants):
    chosen, why = best_ops(torch.device("cpu"), lambda: compiled("eager"))
    assert why == ""
    networks = []
    for width, ops in ((64, chosen), (32, compiled("eager")), (64, compiled("eager"))):  # a pair, and one loaded again
        networks.append(loaded(width, ops))
        read_all_sizes(networks[-1])
    before = counters["stats"]["unique_graphs"]
    for network in networks:
        read_all_sizes(network)
    assert [network.trouble for network in networks] == [""] * 3
    assert counters["stats"]["unique_graphs"] == before


def failing(hidden, added, weight, epsilon):
    if len(hidden) > 4:
        raise RuntimeError("recompile_limit reached\nand a long story")
    return add_norm(hidden, added, weight, epsilon)


def test_what_no_longer_compiles_is_recorded_with_plain_operations():
    layers, recorder = eager(), FrozenRecorder()
    network = GraphNetwork(layers, recorder, FusedOps(add_norm=failing))
    models = [Decoder(one, 512) for one in (layers, network)]
    for tree in (chain(0), bush(4), chain(0)):
        for model in models:
            model.prefill(prompt(20))
        assert_same(*(model.read(tree).logits for model in models))
        for model in models:
            model.keep([])
    assert network.trouble == "norms and rotations are not compiled: recompile_limit reached"
    target = Loaded("tiny", models[1], None, frozenset(), 0, "float32")
    pair = LoadedPair("tiny", target, Letters(V), torch.device("cpu"), "float32", [], 0.0)
    assert pair.slower == [f"tiny is slower than it could be: {network.trouble}"]
    replays = recorder.replays
    models[1].read(bush(4))
    assert recorder.replays == replays + 1
