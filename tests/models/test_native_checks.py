"""The kernels refuse weights, states and rows that do not fit together, in one line, before they read any of it."""

from dataclasses import replace
from threading import Barrier, Thread

import numpy as np
import pytest
import torch
from native_kit import native, needs_native
from test_decoder import network, two_rounds

from specchat.errors import ModelError
from specchat.models.cpu_kernels import kernels
from specchat.models.cpu_kernels.c_interface import pointer
from specchat.models.cpu_kernels.network import NativeNetwork
from specchat.models.cpu_kernels.packing import LANES, _as_c
from specchat.models.decoder import weight_check as prepared_source
from specchat.models.decoder.shape import Shape
from specchat.models.weights.gguf_header import Kind
from specchat.models.weights.weight_source import StoredRows, TensorSource

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
        (resized(LAYER + "self_attn.q_norm.weight", 31), "31 rows of queries or keys are not whole heads of 32"),
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
        ({"heads": 3}, "3 heads are not a multiple of 2 key heads"),
        ({"head_dim": 1 << 20}, "not whole heads of 1048576"),
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
            net._kernels.check("decoder_check", net._c)
        setattr(net._c_layers[2].down, field, kept)
    net._kernels.check("decoder_check", net._c)


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
    with pytest.raises(ModelError, match="not numbers"):
        own.head(torch.full((1, 64), float("nan")))


@pytest.mark.parametrize(
    ("rows", "tokens", "said"),
    [
        ([2], [0], "row 2 of 2"),
        ([0, -1], [0, 0], "row -1 of 2"),
        ([1], [61], "token 61 of 61"),
        ([1], [-1], "token -1 of 61"),
        ([0] * 5000, [0] * 5000, "5000 tokens of 2 rows"),
    ],
)
def test_log_probabilities_of_tokens_that_are_not_there_are_refused(rows, tokens, said):
    own = native(network("llama"))
    with pytest.raises(ModelError, match=said):
        own.network.head(torch.randn(2, 64)).log_probabilities(rows, tokens)


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
        (stored(length=65), 4, 1 << 20, "36 bytes are not a row of 65 numbers of kind 2"),
        (stored(length=96), 8, 1 << 20, "36 bytes are not a row of 96 numbers"),
        (stored(kind=Kind.Q4_K, length=64), 4, 1 << 20, "36 bytes are not a row of 64 numbers of kind 12"),
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
