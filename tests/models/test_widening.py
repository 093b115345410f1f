"""A small model in a larger shape says what the small one says, to our own decoder and to transformers."""

import dataclasses

import pytest
import torch
import transformers
from real_weights import fetched
from test_decoder import decoder, network

from specchat.core.context import Context
from specchat.decoding.assemble import assemble
from specchat.decoding.teacher_forcing import forced
from specchat.errors import ModelError
from specchat.models.decoder.decoder import Decoder
from specchat.models.decoder.shape import Shape
from specchat.models.model_loading import own_network
from specchat.models.weights.gguf_header import read_header
from specchat.models.weights.gguf_source import GgufSource
from specchat.models.weights.transformers_cache import config_of
from specchat.models.weights.weight_source import TensorSource
from specchat.settings import Settings
from tools.gpu.widened import Sizes, WidenedSource, widened_config

CPU = torch.device("cpu")
PROMPT, REPLY = [5, 9, 2, 33, 8], [7, 1, 50, 12, 3, 9]
LARGER = Sizes(layers=5, hidden=256, heads=12, kv_heads=3, head_dim=16, inner=160)
DEEPER_HEADS = dataclasses.replace(LARGER, head_dim=48)


def widened(net, sizes, change=lambda config: None):
    config = widened_config(net.config, sizes.with_room_for(Sizes.of(net.config)))
    source = WidenedSource(TensorSource(net.state_dict()), net.config, config, CPU)
    change(source)
    layers, _ = own_network(Shape.of(config), source, "float32", CPU, "torch")
    return Decoder(layers, 512), source, config


def logits(model):
    return torch.stack(list(forced(model, PROMPT, REPLY)))


def text(model, tokens):
    speculator = assemble(Settings().but({"controller": "off"}), model, None)
    context = Context(list(PROMPT), len(PROMPT), model.vocab_size)
    speculator.start(context.history)
    return [token for _ in range(tokens) for token in speculator.round(context).emitted]


@pytest.mark.parametrize("family", ["llama", "llama, tied", "llama, scaled rotation", "qwen2"])
@pytest.mark.parametrize("sizes", [LARGER, DEEPER_HEADS], ids=["heads as they were", "deeper heads"])
def test_the_widened_model_says_what_the_small_one_says(family, sizes):
    net = network(family)
    small, (wide, _, _) = decoder(net), widened(net, sizes)
    assert torch.allclose(logits(wide), logits(small), rtol=1e-4, atol=2e-4 * float(logits(small).std()))
    assert text(wide, 24) == text(small, 24)


def test_without_the_norms_taking_the_factor_back_it_says_something_else():
    net = network("llama")

    def keep_norms(source):
        taken_back = (source._small.hidden / source._wide.hidden) ** 0.5
        rescaled = source._norm
        source._norm = lambda name, layer: rescaled(name, layer) / taken_back

    small, (wide, _, _) = decoder(net), widened(net, LARGER, keep_norms)
    assert (logits(wide) - logits(small)).abs().max() > 0.1 * logits(small).std()
    assert text(wide, 24) != text(small, 24)


def test_without_the_queries_scaled_deeper_heads_say_something_else():
    net = network("llama")

    def leave_queries(source):
        source._scaled = lambda name, weight: weight

    small, (wide, _, _) = decoder(net), widened(net, DEEPER_HEADS, leave_queries)
    assert (logits(wide) - logits(small)).abs().max() > 0.01 * logits(small).std()


def test_what_nothing_is_read_from_holds_noise_rather_than_zeros():
    net = network("llama")
    _, source, _ = widened(net, LARGER)
    for layer in (0, 4):
        weight = source.dense("up", layer)
        assert weight.shape == (160, 256)
        assert (weight[:, 64:] == 0).float().mean() < 0.01
    assert not source.dense("up", 4)[:, :64].any()


def test_transformers_builds_the_same_widened_model():
    net = network("llama")
    wide, source, config = widened(net, DEEPER_HEADS)
    peer = transformers.AutoModelForCausalLM.from_config(config).float().eval()
    missing, unexpected = peer.load_state_dict(dict(source.hub_tensors()), strict=False)
    assert not missing
    assert not unexpected
    with torch.inference_mode():
        said = peer(torch.tensor([[*PROMPT, *REPLY]])).logits[0, len(PROMPT) - 1 : -1]
    assert torch.allclose(said, logits(wide), rtol=1e-4, atol=1e-3)


@pytest.mark.real
def test_the_first_layers_of_smollm2_widened_from_their_file_write_the_same_text():
    path = fetched("smollm2-135m-instruct")
    config = transformers.LlamaConfig(**config_of(read_header(path, lists=True)) | {"num_hidden_layers": 8})
    sizes = dataclasses.replace(Sizes.of(config), layers=9, hidden=640, heads=12, head_dim=128)
    wide_config = widened_config(config, sizes)
    source = GgufSource(path)
    assert source.interleaved
    small, _ = own_network(Shape.of(config), source, "float32", CPU, "torch")
    wide, _ = own_network(
        Shape.of(wide_config), WidenedSource(source, config, wide_config, CPU), "float32", CPU, "torch"
    )
    assert text(Decoder(wide, 512), 8) == text(Decoder(small, 512), 8)


def test_sizes_make_room_for_what_does_not_fit():
    small = Sizes(layers=30, hidden=576, heads=9, kv_heads=3, head_dim=64, inner=1536)
    like_qwen = Sizes(layers=28, hidden=1536, heads=12, kv_heads=2, head_dim=128, inner=8960)
    like_llama = Sizes(layers=32, hidden=4096, heads=32, kv_heads=8, head_dim=128, inner=14336)
    assert like_llama.with_room_for(small) == like_llama
    assert like_qwen.with_room_for(small) == dataclasses.replace(like_qwen, layers=30, heads=18, kv_heads=3)


def test_a_model_that_does_not_fit_or_normalises_its_heads_is_refused():
    net = network("llama")
    config = widened_config(net.config, dataclasses.replace(LARGER, hidden=32))
    with pytest.raises(ModelError, match="does not fit"):
        WidenedSource(TensorSource(net.state_dict()), net.config, config, CPU)
    with pytest.raises(ModelError, match="normalises its heads"):
        widened(network("qwen3"), dataclasses.replace(LARGER, head_dim=32))
