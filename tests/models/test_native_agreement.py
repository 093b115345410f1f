"""The layers in C say what torch and transformers say, on every processor."""

import pytest
import torch
from native_kit import FourBitSource, have, native, needs_native
from test_decoder import FAMILIES, PRECISIONS, V, decoder, network, prompt, two_rounds

from specchat.compiled.machine import cpu_flags
from specchat.core.tree import TokenTree
from specchat.decoding.pass_times import break_down
from specchat.models.backends.transformers_model import ReferenceModel


@needs_native
@pytest.mark.parametrize("family", FAMILIES)
def test_at_8_bits_it_says_what_transformers_says(family):
    net = network(family)
    expected = two_rounds(ReferenceModel(net, 512))
    error = (two_rounds(native(net)) - expected).abs().max() / expected.std()
    assert error < PRECISIONS["int8"]


@needs_native
def test_at_4_bits_it_multiplies_with_the_files_own_numbers():
    net = network("llama")
    source = FourBitSource(net.state_dict())
    rounded = network("llama")
    rounded.load_state_dict(source.dequantised())
    expected = two_rounds(ReferenceModel(rounded, 512))
    error = (two_rounds(native(net, "int4", source=source)) - expected).abs().max() / expected.std()
    assert error < PRECISIONS["int8"]
    wrong = (two_rounds(ReferenceModel(net, 512)) - expected).abs().max() / expected.std()
    assert wrong > 2 * PRECISIONS["int8"], "the weights before rounding must be told apart"


@needs_native
def test_torch_and_native_agree_at_8_bits():
    net = network("mistral")
    expected = two_rounds(decoder(net, "int8"))
    error = (two_rounds(native(net)) - expected).abs().max() / expected.std()
    assert error < PRECISIONS["int8"]


@needs_native
@pytest.mark.parametrize(("processor", "beyond"), [("haswell", None), ("alderlake", "avx_vnni")])
def test_older_processors_compute_the_same(processor, beyond):
    if why := have(processor):
        pytest.skip(why)
    if beyond is not None and beyond not in cpu_flags():
        pytest.skip(f"this processor lacks {beyond}")
    net = network("qwen2")
    newest, older = two_rounds(native(net)), two_rounds(native(net, processor=processor))
    torch.testing.assert_close(newest, older, rtol=1e-3, atol=1e-2 * float(newest.std()))


@needs_native
@pytest.mark.parametrize("equal", [1100, 3000])
def test_any_number_of_keys_that_weigh_alike_is_averaged(equal):
    """Queries of zeros weigh all keys alike, and equal tokens have equal values: their mean is that of one token."""
    net = network("llama")
    with torch.no_grad():
        for layer in net.model.layers:
            layer.self_attn.q_proj.weight.zero_()
    own, alone = (native(net, context_tokens=4096) for _ in range(2))
    root = TokenTree(5, V).freeze()
    own.prefill([5] * equal)
    said, expected = own.read(root).logits, alone.read(root).logits
    torch.testing.assert_close(said, expected, rtol=0, atol=1e-2 * float(expected.std()))


@needs_native
def test_the_phases_of_a_pass_are_its_time_and_stand_beside_a_floor():
    own = native(network("llama"))
    own.network.threads = 2
    times = break_down(own, own.network, rows=(1, 8), contexts=(100, 400, 4000))
    assert [(one.context_tokens, one.rows) for one in times] == [(100, 1), (100, 8), (400, 1), (400, 8)]
    for one in times:
        assert set(one.parts) == {"rounding", "products", "attention", "head", "waiting", "python"}
        assert all(seconds > 0 for name, seconds in one.parts.items() if name != "waiting")
        assert max(one.parts.values()) < one.seconds
    few, many = times[2:]
    assert many.arithmetic_s == pytest.approx(8 * few.arithmetic_s)
    assert many.memory_s == few.memory_s > times[0].memory_s
    assert sum(own.network.phases().values()) == 0, "nothing is timed any more"
    assert own.cached(prompt()) == 0
