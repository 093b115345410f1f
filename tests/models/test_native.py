"""The layers in C say what torch says, and give a row the same bits whatever is read with it."""

from dataclasses import replace

import pytest
import torch
from gguf import GGMLQuantizationType
from gguf.quants import quantize
from test_decoder import (
    FAMILIES,
    PRECISIONS,
    V,
    branching_tree,
    decoder,
    network,
    prompt,
    read_dropping,
    source_of,
    two_rounds,
)

from specchat.compiled import build as compiling
from specchat.compiled.build import NativeUnavailable
from specchat.compiled.processor import cpu_flags
from specchat.core.head_output import HeadTensors
from specchat.core.tree import ROOT, Guess, TokenTree
from specchat.decoding.pass_breakdown import break_down
from specchat.errors import ModelError
from specchat.models import model_loading
from specchat.models.base.shape import Shape
from specchat.models.files.gguf_reader import StoredTensor
from specchat.models.files.stored_rows import StoredRows
from specchat.models.files.tensor_source import TensorSource
from specchat.models.native import build, kernels
from specchat.models.native.arena import Arena
from specchat.models.native.network import NativeNetwork
from specchat.models.other.transformers_model import ReferenceModel
from specchat.models.own.decoder import Decoder


def have(processor="native"):
    try:
        kernels.kernels_for(processor)
    except NativeUnavailable as error:
        return str(error)
    return ""


needs_native = pytest.mark.skipif(bool(have()), reason=have() or "-")


def native(net, precision="int8", context_tokens=512, processor="native", source=None):
    source = source or source_of(net)
    return Decoder(NativeNetwork(Shape.of(net.config), source, precision, processor), context_tokens)


class FourBitSource(TensorSource):
    """Weights rounded to 4 bits, with minima in every second layer."""

    def stored(self, name, layer=None):
        if name in ("embed", "head"):
            return super().stored(name, layer)
        tensor = self._rounded(name, layer)
        return StoredRows(int(tensor.kind), tensor.data, tensor.shape[1])

    def dequantised(self):
        """A state with the numbers that 4 bits leave."""
        state = dict(self._tensors)
        for layer in range(3):
            for ours in ("q", "k", "v", "o", "gate", "up", "down"):
                state[self._name(ours, layer, "weight")] = self._rounded(ours, layer).dense()
        return state

    def _rounded(self, name, layer):
        weight = self.dense(name, layer)
        kind = GGMLQuantizationType.Q4_0 if layer % 2 else GGMLQuantizationType.Q4_1
        return StoredTensor(name, weight.shape, kind, quantize(weight.numpy(), kind))


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
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "smollm3", "mistral, sliding window", "gemma3"])
def test_a_tree_gets_the_bits_of_plain_decoding(family):
    own = native(network(family))
    chain = [5, 9, 2, 33, 17, 8]
    plain = []
    own.prefill(prompt())
    for token in chain:
        plain.append(own.read(TokenTree(token, V).freeze()).logits[0].clone())
        own.keep([])
    own.prefill(prompt())
    tree, node, path = TokenTree(chain[0], V), ROOT, []
    for token in chain[1:]:
        for wrong in range(40, 43):
            tree.add(node, Guess(wrong))
        node = tree.add(node, Guess(token))
        path.append(node)
    logits = own.read(tree.freeze()).logits
    assert len(tree) > 16
    for row, expected in zip([ROOT, *path], plain, strict=True):
        assert torch.equal(logits[row], expected)
    own.keep(path[:3])
    after = own.read(TokenTree(chain[4], V).freeze()).logits[0]
    assert torch.equal(after, plain[4]), "rows moved by keeping a path keep their bits"


@needs_native
@pytest.mark.parametrize("threads", [1, 3])
def test_of_equal_logits_the_lower_numbers_are_named_first(threads):
    net = network("llama")
    with torch.no_grad():
        net.lm_head.weight[3:] = net.lm_head.weight[2]
    own = native(net)
    own.network.threads = threads
    own.prefill(prompt())
    reading = own.read(TokenTree(5, V).freeze())
    order = sorted(range(V), key=lambda token: (-reading.logits[0, token], token))
    assert reading.said.likeliest[0].tolist() == order[: reading.said.likeliest.shape[1]]


@needs_native
@pytest.mark.parametrize("vocab_size", [V, 9001])
def test_a_model_that_drafts_says_what_its_log_probabilities_lack(vocab_size):
    net = network("llama")
    net.resize_token_embeddings(vocab_size)
    totals = []
    for threads in (1, 3):
        own = Decoder(NativeNetwork(Shape.of(net.config), source_of(net), "int8"), 512, drafts=True)
        own.network.threads = threads
        own.prefill(prompt())
        reading = own.read(branching_tree()[0])
        torch.testing.assert_close(reading.said.totals, torch.logsumexp(reading.logits, dim=1))
        totals.append(reading.said.totals)
    assert torch.equal(*totals), "the sums are the same with any number of threads"


@needs_native
@pytest.mark.parametrize("vocab_size", [V, 9001])
def test_log_probabilities_of_some_tokens_are_those_of_whole_rows(vocab_size):
    net = network("llama")
    net.resize_token_embeddings(vocab_size)
    own, nodes, tokens = native(net), [0, 0, 3, 4, 4], [7, vocab_size - 1, 0, 16, 4]
    found = []
    for threads in (1, 3):
        own.network.threads = threads
        own.prefill(prompt())
        reading = own.read(branching_tree()[0])
        assert reading.logprobs_after([], []) == []
        found.append(reading.logprobs_after(nodes, tokens))
        whole = torch.log_softmax(reading.logits, dim=1)[nodes, tokens]
        torch.testing.assert_close(torch.tensor(found[-1]), whole)
        by_torch = replace(reading, said=HeadTensors(reading.logits)).logprobs_after(nodes, tokens)
        torch.testing.assert_close(torch.tensor(by_torch), whole)
    assert found[0] == found[1], "every way to add up gives the same sums"


@needs_native
def test_a_token_that_is_certain_has_no_probability_above_one():
    net = network("llama")
    with torch.no_grad():
        net.lm_head.weight.zero_()
        net.lm_head.weight[5] = 1000 * torch.randn(64)
    own = native(net)
    own.prefill(prompt())
    reading = own.read(TokenTree(5, V).freeze())
    assert reading.logprobs_after([ROOT], [reading.best_after([ROOT], 1)[0][0]])[0] <= 0


@needs_native
def test_a_prompt_read_in_pieces_gets_the_same_bits():
    own = native(network("llama"))
    readings = []
    for pieces in ([300], [1, 299], [7, 20, 256, 300]):
        own.prefill(())
        for length in pieces:
            own.prefill(prompt(length))
        own.prefill(prompt(300))
        readings.append(own.read(TokenTree(3, V).freeze()).logits)
        own.keep([])
    assert torch.equal(readings[0], readings[1])
    assert torch.equal(readings[0], readings[2])


@needs_native
def test_dropping_rows_leaves_the_bits_of_those_that_stay():
    own = native(network("llama"))
    whole, reading, staying = read_dropping(own)
    for node in staying:
        assert torch.equal(reading.after(node), whole[node])


@needs_native
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_the_number_of_threads_changes_no_bit(threads):
    own = native(network("llama"))
    expected = two_rounds(own)
    own.prefill(())
    own.network.threads = threads
    assert torch.equal(two_rounds(own), expected)


@needs_native
@pytest.mark.parametrize("family", ["llama", "mistral, sliding window"])
def test_behind_a_long_text_the_number_of_threads_changes_no_bit(family):
    own = native(network(family), context_tokens=1024)
    tree, right, _ = branching_tree()
    said = []
    for threads in (1, 2, 3):
        own.network.threads = threads
        own.prefill(prompt(700))
        said.append(own.read(tree).logits)
        own.keep([])
        said.append(own.read(TokenTree(9, V).freeze()).logits)
    for tree_logits, plain in zip(said[::2], said[1::2], strict=True):
        assert torch.equal(tree_logits, said[0])
        assert torch.equal(plain[0], said[0][right]), "a row of a tree has the bits of plain decoding"


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


def test_an_arena_has_room_for_what_does_not_fit_into_one_piece():
    arena = Arena()
    kept = [arena.room(30 << 20).fill_(value) for value in (1, 2, 3)]
    assert [int(tensor[0]) for tensor in kept] == [int(tensor[-1]) for tensor in kept] == [1, 2, 3]


@pytest.fixture
def nowhere(monkeypatch, tmp_path):
    """A machine with an empty cache and no compiler."""
    monkeypatch.setenv("SPECCHAT_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(compiling.importlib.util, "find_spec", lambda name: None)
    kernels.kernels_for.cache_clear()
    yield tmp_path
    kernels.kernels_for.cache_clear()


@needs_native
def test_without_a_compiler_torch_multiplies_and_it_is_said(nowhere):
    net = network("llama")
    shape, source = Shape.of(net.config), source_of(net)
    chosen, notes = model_loading.own_network(shape, source, "int8", torch.device("cpu"), "auto")
    assert chosen.kernels == "torch"
    assert "no C compiler" in notes[0]
    with pytest.raises(ModelError, match=r"specchat\[native\]"):
        model_loading.own_network(shape, source, "int8", torch.device("cpu"), "native")


@needs_native
def test_a_compiler_that_fails_is_quoted(nowhere, monkeypatch):
    failing = nowhere / "mycc"
    failing.write_text("#!/bin/sh\necho 'no such luck' >&2\nexit 1\n")
    failing.chmod(0o755)
    monkeypatch.setenv("CC", str(failing))
    with pytest.raises(NativeUnavailable, match="no such luck"):
        build.load()


@needs_native
def test_torch_and_native_agree_at_8_bits():
    net = network("mistral")
    expected = two_rounds(decoder(net, "int8"))
    error = (two_rounds(native(net)) - expected).abs().max() / expected.std()
    assert error < PRECISIONS["int8"]
