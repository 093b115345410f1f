"""The kernels refuse what does not fit together, in one line that says what, before they read or write any of it."""

import ctypes
from array import array
from dataclasses import replace
from threading import Barrier, Thread

import numpy as np
import pytest
import torch
from test_decoder import V, branching_tree, network, prompt, two_rounds
from test_native import native, needs_native

from specchat.core.request import Adapter, PassRequest, Rider
from specchat.core.tree import TokenTree
from specchat.errors import ModelError
from specchat.models.base import prepared_source
from specchat.models.base.kv_cache import KVCache
from specchat.models.base.shape import Shape
from specchat.models.files.gguf_formats import Kind
from specchat.models.files.stored_rows import StoredRows
from specchat.models.files.tensor_source import TensorSource
from specchat.models.native import kernels, pass_rows
from specchat.models.native.c_structures import KEYS
from specchat.models.native.network import NativeNetwork
from specchat.models.native.packing import _as_c
from specchat.models.native.product import LANES
from specchat.models.native.tensor_pointers import pointer

pytestmark = needs_native


@pytest.fixture(autouse=True)
def no_check_before(monkeypatch):
    """Weights reach the kernels unchecked: what they refuse themselves is what is tested here."""
    monkeypatch.setattr(prepared_source, "check_weights", lambda source, shape: None)


def loaded(change=lambda state: None, **shape):
    net = network("qwen3")
    state = dict(net.state_dict())
    change(state)
    return NativeNetwork(replace(Shape.of(net.config), **shape), TensorSource(state), "int8")


def resized(name, *sizes):
    def change(state):
        state[name] = torch.ones(*sizes)

    return change


LAYER = "model.layers.1."


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (resized(LAYER + "self_attn.q_proj.weight", 64, 64), "layer 1, q: 64 inputs and 64 outputs, not 64 and 128"),
        (resized(LAYER + "self_attn.k_proj.weight", 96, 64), "layer 1, k: 64 inputs and 96 outputs, not 64 and 64"),
        (resized(LAYER + "self_attn.v_proj.weight", 64, 32), "layer 1, v: 32 inputs and 64 outputs, not 64 and 64"),
        (resized(LAYER + "self_attn.o_proj.weight", 6400, 128), "layer 1, o: 128 inputs and 6400 outputs"),
        (resized(LAYER + "mlp.up_proj.weight", 64, 64), "layer 1, up: 64 inputs and 64 outputs, not 64 and 96"),
        (resized(LAYER + "mlp.down_proj.weight", 64, 128), "layer 1, down: 128 inputs and 64 outputs, not 96 and 64"),
        (resized("lm_head.weight", 59, 64), "head: 64 inputs and 59 outputs, not 64 and 61"),
        (resized(LAYER + "input_layernorm.weight", 1), r"layer 1, input_norm: \(1,\) float32, not \(64,\) float32"),
        (resized(LAYER + "self_attn.q_norm.weight", 31), "31 rows of queries or keys are no whole heads of 32"),
        (resized("model.norm.weight", 65), r"the last norm: \(65,\)"),
    ],
)
def test_a_weight_of_another_size_is_refused_by_name(change, said):
    with pytest.raises(ModelError, match=said) as caught:
        loaded(change)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        ({"kv_heads": 0}, "key heads is 0"),
        ({"heads": 3}, "3 heads are no multiple of 2 key heads"),
        ({"head_dim": 1 << 20}, "no whole heads of 1048576"),
        ({"hidden": 6400}, "6400"),
        ({"vocab_size": 1 << 30}, "vocabulary is 1073741824"),
        ({"epsilon": float("nan")}, "epsilon of the norms is nan"),
        ({"epsilon": -1.0}, "epsilon"),
        ({"heads": -4}, "heads is -4"),
    ],
)
def test_sizes_that_contradict_each_other_are_refused(shape, said):
    with pytest.raises(ModelError, match=said):
        loaded(**shape)


def test_a_product_whose_bytes_are_not_those_of_its_sizes_is_refused():
    net = loaded()
    for field, value, said in [
        ("bytes", 64, "layer 2, down: 64 bytes, not "),
        ("bits", 5, "layer 2, down: 5 bits, not 4 or 8"),
        ("minima", 1, "layer 2, down: minima 1 of 8 bits"),
        ("data", None, "layer 2, down: no numbers"),
    ]:
        kept = getattr(net._c_layers[2].down, field)
        setattr(net._c_layers[2].down, field, value)
        with pytest.raises(ModelError, match=said):
            net._kernels.check(net._c)
        setattr(net._c_layers[2].down, field, kept)
    net._kernels.check(net._c)


@pytest.mark.parametrize(
    "change",
    [
        lambda c: setattr(c, "rows", 0),
        lambda c: setattr(c, "rows", 1 << 20),
        lambda c: setattr(c, "end", c.capacity + 1),
        lambda c: setattr(c, "end", 0),
        lambda c: setattr(c.kind[0], "common", c.end + 1),
        lambda c: setattr(c.kind[0], "common", -1),
        lambda c: setattr(c, "capacity", 1000),
        lambda c: setattr(c.kind[0], "mask", None),
    ],
)
def test_rows_that_lie_outside_the_cache_are_refused(monkeypatch, change):
    own = native(network("llama"))
    own.prefill(prompt())
    layers = kernels.Kernels.layers

    def changed(self, threads, decoder, rows, which):
        change(rows)
        return layers(self, threads, decoder, rows, which)

    monkeypatch.setattr(kernels.Kernels, "layers", changed)
    with pytest.raises(ModelError, match="the native kernels refuse this"):
        own.read(TokenTree(5, V).freeze())


WHICH = ctypes.c_int32 * 8


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda c: setattr(c, "kept", 2), "a layer's place in the cache is 2, not -1 to 1"),
        (lambda c: setattr(c, "place_of", None), "a cache of 3 layers of 4|a cache of 2 layers of 3"),
        (lambda c: setattr(c, "adapters", 99), "adapters is 99"),
        (lambda c: setattr(c, "adapter_of", ctypes.addressof(FAR)), "a row's adapter is 7, not -1 to 0"),
        (lambda c: ctypes.c_int32.from_address(c.low_rank).__setattr__("value", 5000), "rank is 5000, not 0 to 1024"),
        (lambda c: ctypes.c_int32.from_address(c.low_rank + 4).__setattr__("value", 1), "an adapter of 1 inputs"),
    ],
)
def test_parts_and_adapters_that_are_not_there_are_refused(monkeypatch, change, said):
    own = native(network("llama"))
    view = own.view(skip_mlp=[0]) if "place" in said else own.view(skip_attention=[1])
    view.prefill(prompt())
    layers = kernels.Kernels.layers

    def changed(self, threads, decoder, rows, which):
        change(rows)
        return layers(self, threads, decoder, rows, which)

    monkeypatch.setattr(kernels.Kernels, "layers", changed)
    adapter = Adapter({(0, "q"): (torch.zeros(2, 64), torch.zeros(64, 2))})
    riders = (Rider(0, torch.zeros(64), adapter=adapter),)
    with pytest.raises(ModelError, match=said):
        view.read(TokenTree(5, V).freeze(), request=PassRequest(riders=riders))


FAR = WHICH(*[7] * 8)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda c: setattr(c, "tapped", 99), "tapped layers is 99"),
        (lambda c: setattr(c, "tap_of", ctypes.addressof(FAR)), "a tapped layer's place is 7, not -1 to 0"),
        (lambda c: setattr(c, "taps", None), "no room for tapped states"),
    ],
)
def test_taps_without_room_are_refused(monkeypatch, change, said):
    own = native(network("llama"))
    own.prefill(prompt())
    layers = kernels.Kernels.layers

    def changed(self, threads, decoder, rows, which):
        change(rows)
        return layers(self, threads, decoder, rows, which)

    monkeypatch.setattr(kernels.Kernels, "layers", changed)
    with pytest.raises(ModelError, match=said):
        own.read(TokenTree(5, V).freeze(), request=PassRequest(taps=frozenset({1})))


def test_taps_take_no_call_of_their_own(monkeypatch):
    own = native(network("llama"))
    own.prefill(prompt())
    calls: list[range] = []
    layers = kernels.Kernels.layers

    def counted(self, threads, decoder, rows, which):
        calls.append(which)
        return layers(self, threads, decoder, rows, which)

    monkeypatch.setattr(kernels.Kernels, "layers", counted)
    reading = own.read(TokenTree(5, V).freeze(), request=PassRequest(taps=frozenset({0, 1})))
    assert calls == [range(own.layers)]
    assert not torch.equal(reading.taps[0], reading.taps[1])


@pytest.mark.parametrize("place", [-1, 10_000, 3])
def test_a_row_written_elsewhere_than_it_sees_is_refused(monkeypatch, place):
    own = native(network("llama"))
    own.prefill(prompt())
    tree, _, _ = branching_tree()

    def elsewhere(kind, values):
        return array(kind, [place] * len(values) if isinstance(values, range) else values)

    monkeypatch.setattr(pass_rows, "array", elsewhere)
    if place == 3:  # a row of the prefix, which everybody sees
        assert own.read(tree).logits.isfinite().all()
        return
    with pytest.raises(ModelError, match="row 0 does not see itself"):
        own.read(tree)


@pytest.mark.parametrize("move", [(0, 64), (-1, 3)])
def test_rows_that_are_not_in_the_cache_do_not_move(move):
    cache = torch.zeros(1, 1, 64, 32, dtype=torch.bfloat16)
    with pytest.raises(ModelError, match="a row that moves is"):
        kernels.kernels_for().move_rows(cache, cache.clone(), [move])


def test_a_cache_of_other_numbers_is_not_moved():
    cache = torch.zeros(1, 1, 64, 32)
    with pytest.raises(ModelError, match="keys"):
        kernels.kernels_for().move_rows(cache, cache.clone(), [(0, 1)])


def test_rows_move_as_the_cache_lays_them_out():
    cache = KVCache(range(3), 128, KEYS, kernels.kernels_for().move_rows)
    keys, values = cache.room_for(128, torch.empty(2, 32, dtype=torch.bfloat16))
    for stored in (keys, values):
        stored.copy_(torch.randn(stored.shape))

    def rows():  # (layers, heads, rows, …), the second of a pair of values' rows first
        by_row = cache._by_row(keys, values)
        return by_row[0].flatten(2, 4).clone(), by_row[1].flip(4).flatten(2, 4).clone()

    before = rows()
    assert cache.keep_rows_(30, [31, 34, 71]) == 33
    for old, new in zip(before, rows(), strict=True):
        assert torch.equal(new[:, :, 30:33], old[:, :, [31, 34, 71]])
        assert torch.equal(new[:, :, :30], old[:, :, :30])
        assert torch.equal(new[:, :, 33:], old[:, :, 33:])


@pytest.mark.parametrize("position", [-1, 1 << 20])
def test_a_row_at_a_position_without_a_rotation_is_refused(monkeypatch, position):
    own = native(network("llama"))
    own.prefill(prompt())

    def elsewhere(kind, values):
        return array(kind, values if isinstance(values, range) else [position] * len(values))

    monkeypatch.setattr(pass_rows, "array", elsewhere)
    with pytest.raises(ModelError, match=f"row 0 is at position {position} of"):
        own.read(branching_tree()[0])


def test_layers_that_are_not_there_are_refused():
    own = native(network("llama"))
    own.prefill(prompt())
    net = own.network
    with pytest.raises(ModelError, match="layers 0 to 4 of 3"):
        net._kernels._done(
            net._kernels._library.decoder_layers(
                net._kernels._team_of(1), ctypes.byref(net._c), ctypes.byref(net._c), 0, 4
            )
        )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_states_of_another_format_are_converted_for_the_head(dtype):
    own = native(network("llama"))
    states = torch.randn(3, 64, generator=torch.Generator().manual_seed(1)).to(dtype)
    assert torch.equal(own.head(states), own.head(states.float()))


def test_states_with_gaps_are_closed_for_the_head():
    own = native(network("llama"))
    states = torch.randn(64, 3, generator=torch.Generator().manual_seed(1)).t()
    assert torch.equal(own.head(states), own.head(states.contiguous()))


def test_states_of_another_width_are_refused():
    own = native(network("llama"))
    with pytest.raises(ModelError, match=r"states: \(2, 65\) float32, not \(2, 64\) float32"):
        own.head(torch.zeros(2, 65))


def test_embeddings_of_another_format_are_converted():
    own = native(network("llama"))
    expected = two_rounds(own)
    plain = own.network.embed
    own.network.embed = lambda tokens: plain(tokens).double().t().contiguous().t()
    own.prefill(())
    assert torch.equal(two_rounds(own), expected)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.zeros(4, 8, dtype=torch.bfloat16),
        torch.zeros(8, 4).t(),
        torch.zeros(4, 16)[:, ::2],
        torch.zeros(4, 9),
        torch.zeros(4, 8, device="meta"),
    ],
)
def test_c_is_told_the_address_of_nothing_else_than_it_takes_it_for(tensor):
    with pytest.raises(ModelError, match="the native kernels refuse rows"):
        pointer("rows", tensor, torch.float32, 4, 8)


def test_logits_that_are_no_numbers_are_refused():
    own = native(network("llama"))
    with pytest.raises(ModelError, match="no numbers"):
        own.head(torch.full((1, 64), float("nan")))


@pytest.mark.parametrize("threads", [0, -1, 100_000])
def test_a_team_of_a_number_of_threads_that_makes_no_sense_is_not_made(threads):
    own = native(network("llama"))
    assert not own.network._kernels._library.team_new(threads)
    own.network.threads = threads
    with pytest.raises(AssertionError, match="a team of"):
        own.head(torch.zeros(1, 64))
    own.network.threads = 1
    own.head(torch.zeros(1, 64))


def stored(**change):
    about = {"kind": Kind.Q4_0, "data": np.zeros((20, 36), dtype=np.uint8), "length": 64} | change
    return StoredRows(**about)


@pytest.mark.parametrize(
    ("rows", "bits", "room", "said"),
    [
        (stored(kind=11), 4, 1 << 20, "rows of kind 11 cannot be packed"),
        (stored(kind=-3), 4, 1 << 20, "cannot be packed"),
        (stored(length=65), 4, 1 << 20, "36 bytes are no row of 65 numbers of kind 2"),
        (stored(length=96), 8, 1 << 20, "36 bytes are no row of 96 numbers"),
        (stored(kind=Kind.Q4_K, length=64), 4, 1 << 20, "36 bytes are no row of 64 numbers of kind 12"),
        (stored(order=np.array([0, 20], dtype=np.int32)), 4, 1 << 20, "row 20 of 20"),
        (stored(order=np.array([0, -1], dtype=np.int32)), 4, 1 << 20, "row -1 of 20"),
        (stored(), 5, 1 << 20, "5 bits"),
        (stored(), 4, 2 * 2 * (16 * LANES + 2 * LANES) - 1, "bytes are too few"),
        (stored(), 8, 2 * 2 * (32 * LANES + 2 * LANES) - 1, "bytes are too few"),
    ],
)
def test_rows_that_are_not_what_is_said_of_them_are_not_packed(rows, bits, room, said):
    to = torch.zeros(1 << 20, dtype=torch.uint8)
    with pytest.raises(ModelError, match=said):
        kernels.kernels_for().pack(_as_c(rows), bits, to.data_ptr(), room)
    assert not to.any(), "nothing was written"


def test_two_networks_read_at_the_same_time_say_what_each_says_alone():
    models = [native(network(family)) for family in ("llama", "qwen3")]
    for threads, model in zip((2, 3), models, strict=True):
        model.network.threads = threads
    expected = [two_rounds(model) for model in models]
    start, wrong = Barrier(2), []

    def read(which):
        start.wait()
        for _ in range(30):
            models[which].prefill(())
            if not torch.equal(two_rounds(models[which]), expected[which]):
                wrong.append(which)

    readers = [Thread(target=read, args=(which,)) for which in (0, 1)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    assert wrong == []
