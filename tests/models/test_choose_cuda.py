"""What runs on a CUDA device: recorded passes where they agree with the eager layers, and the eager ones where not."""

from contextlib import nullcontext

import pytest
import torch
from cuda_graph_stand_in import FrozenRecorder, RefusingRecorder
from rows import each_row
from test_cuda_graphs import bush, chain, eager
from test_decoder import FAMILIES, V, branching_tree, network, prompt, source_of

from specchat.core.tree import TokenTree
from specchat.models.decoder.cuda_linear import int8_works
from specchat.models.decoder.decoder import Decoder
from specchat.models.decoder.eager import EagerNetwork
from specchat.models.decoder.fused_ops import PLAIN, FusedOps, add_norm, best_ops, compiled, gated, store_
from specchat.models.decoder.layer_weights import Builder
from specchat.models.decoder.recorded_network import GraphNetwork, cuda_network, disagreement, recorded_network
from specchat.models.decoder.shape import Shape
from specchat.models.model_loading import own_network

gpu = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


class DeafRecorder(FrozenRecorder):
    """A device whose replays do nothing."""

    def record(self, compute):
        super().record(compute)
        return lambda: None


def leave_guards_unmeasured(monkeypatch):
    """Dynamo empties the processor's caches to measure the guards of what it compiles: 20 ms each time."""
    monkeypatch.setattr("torch._dynamo.guards.profile_guard_manager", lambda *arguments: 0.0)


class Repeating(FrozenRecorder):
    """Computes again instead of replaying: compiled code cannot be looked into."""

    def record(self, compute):
        compute()
        return compute


def test_recorded_passes_that_agree_are_used():
    chosen, why = recorded_network(eager().weights, FrozenRecorder, PLAIN)
    assert isinstance(chosen, GraphNetwork)
    assert chosen.kernels == "torch, CUDA graphs"
    assert why == ""


def test_recorded_passes_that_disagree_are_not():
    chosen, why = recorded_network(eager().weights, DeafRecorder, PLAIN)
    assert isinstance(chosen, EagerNetwork)
    assert "off by" in why


def test_where_nothing_can_be_recorded_the_reason_is_told():
    chosen, why = recorded_network(eager().weights, RefusingRecorder, PLAIN)
    assert isinstance(chosen, EagerNetwork)
    assert "operation not permitted" in why


def test_a_row_seen_wrongly_is_a_disagreement():
    class Blind(EagerNetwork):
        def _mask(self, seen):
            return None

    layers = eager()
    assert disagreement(layers, EagerNetwork(layers.weights)) == 0
    assert disagreement(layers, Blind(layers.weights)) > 0.5


def test_compiled_pieces_say_what_the_plain_ones_say(monkeypatch):
    leave_guards_unmeasured(monkeypatch)
    made, why = best_ops(torch.device("cpu"), lambda: compiled("aot_eager"))
    assert why == ""
    for family in ("llama", "qwen3"):
        chosen, why = recorded_network(eager(family).weights, Repeating, made)
        assert isinstance(chosen, GraphNetwork), (family, why)


def test_pieces_that_cannot_be_compiled_are_left_as_they_are():
    def no_compiler():
        raise RuntimeError("no compiler here\nand a long story")

    made, why = best_ops(torch.device("cpu"), no_compiler)
    assert made is PLAIN
    assert why.endswith("no compiler here")


@each_row(
    "pieces",
    [
        FusedOps(gated=lambda both, gelu: gated(both)),
        FusedOps(add_norm=lambda hidden, added, *rest: add_norm(hidden, hidden, *rest)),
        FusedOps(store_=lambda qkv, q_norm, k_norm, *rest: store_(qkv, None, None, *rest)),
        FusedOps(store_=lambda *given: store_(*given[:-1], given[-1].clone())),
    ],
    ids=["gelu", "nothing added", "norms", "values not written"],
)
def test_pieces_that_say_something_else_are_left_out(pieces):
    made, why = best_ops(torch.device("cpu"), lambda: pieces)
    assert made is PLAIN
    assert why.endswith("not close!")


def on_device(family, precision="bfloat16"):
    net = network(family)
    source = source_of(net)
    return Builder(Shape.of(net.config), source, precision, torch.device("cuda")).build()


class TestOnADevice:
    pytestmark = gpu

    @pytest.mark.parametrize("family", FAMILIES)
    @pytest.mark.parametrize("compiles", [False, True])
    def test_replayed_passes_say_what_the_eager_layers_say(self, family, compiles):
        weights = on_device(family, "float32")
        chosen, notes = cuda_network(weights, compiles)
        assert isinstance(chosen, GraphNetwork), notes
        plain, recorded = Decoder(EagerNetwork(weights), 2000), Decoder(chosen, 2000)
        said = []
        for model in (plain, recorded):
            logits = []
            for length in (0, 30, 600, 1100):
                model.prefill(prompt(length))
                for tree in (chain(0), bush(5), branching_tree()[0], chain(4, 3), chain(4, 7)):
                    logits.append(model.read(tree).logits)
                    model.keep(tree.path(len(tree) - 1))
            said.append(torch.cat(logits))
        torch.testing.assert_close(*said, rtol=1e-3, atol=1e-3)
        assert (chosen.records, chosen.trouble) == (True, "")
        assert chosen.replayed >= 20, "every tree is read by a recording"

    def test_recordings_of_two_models_stay_in_use_and_the_cache_where_it_is(self):
        networks = [cuda_network(on_device(family))[0] for family in ("llama", "qwen3")]
        models = [Decoder(network, 2000) for network in networks]
        where = []
        for model in models:
            model.limit_context_(1500)
            where.append([stored.data_ptr() for stored in model.cache.room_for(0, model.network.like)])
        for length in (20, 600, 1100, 1490):
            for model in models:
                model.prefill(prompt(length))
                replayed = model.network.replayed
                for first in (3, 5):
                    model.read(chain(4, first))
                    model.keep([])
                assert model.network.replayed == replayed + 2
        for chosen, model, before in zip(networks, models, where, strict=True):
            assert (chosen.records, chosen.trouble) == (True, "")
            assert [stored.data_ptr() for stored in model.cache.room_for(0, chosen.like)] == before

    @pytest.mark.parametrize("precision", ["bfloat16", "int8", "float32"])
    def test_loading_chooses_recorded_passes(self, precision):
        if precision == "int8" and not int8_works(torch.device("cuda")):
            pytest.skip("torch has no 8-bit product for this device")
        net = network("llama")
        source = source_of(net)
        chosen, notes = own_network(Shape.of(net.config), source, precision, torch.device("cuda"), "auto")
        assert chosen.kernels == "torch, CUDA graphs", notes
        assert chosen.precision == precision

    def test_a_replayed_round_takes_no_memory_and_waits_only_for_the_tokens(self):
        network = GraphNetwork(EagerNetwork(on_device("llama")), recorder_here())
        model = Decoder(network, 512)
        model.prefill(prompt(30))
        rounds_within(nullcontext, model, 4)  # recorded here
        took = torch.cuda.memory_stats()["segment.all.allocated"]
        held = torch.cuda.memory_allocated()
        rounds_within(quick, model, 8)
        assert torch.cuda.memory_stats()["segment.all.allocated"] == took
        assert torch.cuda.memory_allocated() == held
        assert network.replayed >= 12

    def test_the_control_of_waiting_is_awake(self):
        logits = torch.zeros(3, device="cuda")
        with pytest.raises(RuntimeError, match="synchronizing"), quick():
            logits.tolist()


def recorder_here():
    from specchat.models.decoder.static_pass import CudaRecorder

    return CudaRecorder(torch.device("cuda"))


def rounds_within(surroundings, model, count):
    """Greedy rounds, within which only the copy of the tokens stands outside of the surroundings."""
    for first in range(count):
        tree, right, tip = branching_tree() if first % 2 else (TokenTree(first, V).freeze(), None, None)
        with surroundings():
            reading = model.read(tree)
            best = reading.logits.argmax(dim=-1)
        best.tolist()
        with surroundings():
            model.keep([right, tip] if right else [])


class quick:
    """Waiting for the device is an error in here."""

    def __enter__(self):
        torch.cuda.set_sync_debug_mode("error")

    def __exit__(self, *_):
        torch.cuda.set_sync_debug_mode("default")
