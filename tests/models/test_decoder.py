"""Our own decoder says what transformers says, for every family it claims, and knows which it cannot run."""

import pytest
import torch
import transformers
from contracts.pass_requests import requested
from gguf import GGUFWriter
from rows import each_row
from tiny_models import TOKENS, write_tokenizer

from specchat.config import ModelSpec, PathSource
from specchat.core.request import ExtraRow
from specchat.core.tree import ROOT, Guess, TokenTree
from specchat.models.backends.transformers_model import ReferenceModel
from specchat.models.decoder.decoder import Decoder
from specchat.models.decoder.eager import EagerNetwork
from specchat.models.decoder.layer_weights import Builder
from specchat.models.decoder.network import within_window
from specchat.models.decoder.shape import Shape, unsupported
from specchat.models.model_loading import load_model
from specchat.models.weights import families
from specchat.models.weights.gguf_source import GgufSource
from specchat.models.weights.weight_source import TensorSource

V = 61
SIZES = {
    "vocab_size": V,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "pad_token_id": None,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
FAMILIES = {
    "llama": (transformers.LlamaConfig, {}),
    "llama, scaled rotation": (transformers.LlamaConfig, {"rope_parameters": LLAMA3_ROPE}),
    "llama, tied": (transformers.LlamaConfig, {"tie_word_embeddings": True}),
    "mistral": (transformers.MistralConfig, {"sliding_window": None}),
    "mistral, sliding window": (transformers.MistralConfig, {"sliding_window": 16}),
    "qwen2": (transformers.Qwen2Config, {}),
    "qwen3": (transformers.Qwen3Config, {"head_dim": 32}),
    "gemma3": (
        transformers.Gemma3TextConfig,
        {
            "head_dim": 32,
            "query_pre_attn_scalar": 48,
            "sliding_window": 16,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
                "full_attention": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 8.0},
            },
        },
    ),
    "smollm3": (transformers.SmolLM3Config, {"no_rope_layers": [1, 0, 1]}),
}
# Largest error over the spread of the logits. Measured up to 0.03 and 0.07; anything wired wrongly is above 1.
PRECISIONS = {"float32": 1e-5, "bfloat16": 0.06, "int8": 0.12}


def network(family):
    config_class, extra = FAMILIES[family]
    torch.manual_seed(0)
    net = transformers.AutoModelForCausalLM.from_config(config_class(**SIZES, **extra)).eval().float()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.normal_(std=0.25)
    return net


def source_of(net):
    return TensorSource(net.state_dict(), families.FAMILIES[net.config.model_type])


def decoder(net, precision="float32", context_tokens=512):
    weights = Builder(Shape.of(net.config), source_of(net), precision, torch.device("cpu")).build()
    return Decoder(EagerNetwork(weights), context_tokens)


def prompt(count=40):
    return [int(t) for t in torch.randint(0, V, (count,), generator=torch.Generator().manual_seed(1))]


def branching_tree():
    tree = TokenTree(5, V)
    left, right = tree.add(ROOT, Guess(7)), tree.add(ROOT, Guess(9))
    tree.add(left, Guess(3))
    tip = tree.add(right, Guess(2))
    return tree.freeze(), right, tip


def read_dropping(model):
    """Logits over a tree of which all nodes stay, a reading of it that drops two of five after the first of three
    layers, and the nodes that stay."""
    tree, right, tip = branching_tree()
    staying = (ROOT, right, tip)
    model.prefill(prompt())
    whole = model.read(tree).logits
    spent = model.counters.node_layers
    model.prefill(prompt())
    reading = model.read(tree, request=requested(look=lambda layer, *_: set(staying) if layer == 0 else None))
    assert model.counters.node_layers - spent == 5 + 3 + 3
    return whole, reading, staying


def two_rounds(model):
    """Logits over a tree, and over the next round's root after keeping a scattered path."""
    tree, right, tip = branching_tree()
    model.prefill(prompt())
    first = model.read(tree).logits
    model.keep([right, tip])
    second = model.read(TokenTree(8, V).freeze()).logits
    model.keep([])
    return torch.cat([first, second])


@pytest.mark.parametrize("family", FAMILIES)
def test_the_reference_says_what_the_network_says_without_cache_or_tree(family):
    net = network(family)
    _, right, tip = branching_tree()
    with torch.no_grad():
        plain = [
            net(input_ids=torch.tensor([[*prompt(), 5, *path]]), use_cache=False).logits[0, -1]
            for path in ((), (9,), (9, 2), (9, 2, 8))
        ]
    said = two_rounds(ReferenceModel(net, 512))
    for row, expected in zip((said[0], said[right], said[tip], said[-1]), plain, strict=True):
        torch.testing.assert_close(row, expected, rtol=1e-4, atol=1e-4 * float(expected.std()))


@pytest.mark.parametrize("family", ["qwen3", "gemma3"])
def test_a_gguf_file_of_a_family_says_what_its_tensors_say(tmp_path, family):
    net = network(family)
    described, tensors = families.FAMILIES[net.config.model_type], source_of(net)
    writer = GGUFWriter(tmp_path / "x.gguf", described.gguf)
    for name in described.hub_names:
        for layer in (None,) if name in ("embed", "head", "norm") else range(3):
            if tensors.has(name, layer) and not (name == "head" and net.config.tie_word_embeddings):
                writer.add_tensor(gguf_name(name, layer), tensors.dense(name, layer).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    weights = Builder(Shape.of(net.config), GgufSource(tmp_path / "x.gguf"), "float32", torch.device("cpu")).build()
    assert torch.equal(two_rounds(Decoder(EagerNetwork(weights), 512)), two_rounds(decoder(net)))


def gguf_name(name, layer):
    """What llama.cpp's own converter calls a weight."""
    known = {"embed": "token_embd", "head": "output", "norm": "output_norm", "input_norm": "attn_norm"}
    known |= {name: f"attn_{name}" for name in ("q", "k", "v", "q_norm", "k_norm")} | {"o": "attn_output"}
    known |= {name: f"ffn_{name}" for name in ("gate", "up", "down")} | {"mlp_norm": "ffn_norm"}
    known |= {"post_attention_norm": "post_attention_norm", "post_mlp_norm": "post_ffw_norm"}
    return f"{known[name]}.weight" if layer is None else f"blk.{layer}.{known[name]}.weight"


@pytest.mark.parametrize("common", [0, 3, 20])
@pytest.mark.parametrize("window", [1, 4, 9, 30])
def test_a_window_leaves_the_last_rows_that_a_row_sees(common, window):
    mask = torch.rand(7, 25, generator=torch.Generator().manual_seed(common + window)) < 0.5
    mask[:, :common] = True
    last = within_window(mask, common, window)
    for row, kept in zip(mask, last, strict=True):
        assert torch.equal(kept.nonzero(), row.nonzero()[-window:])


def test_every_family_of_the_table_is_tried():
    assert {FAMILIES[family][0].model_type for family in FAMILIES} == set(families.FAMILIES)


@each_row("family", FAMILIES)
def test_it_says_what_transformers_says(family):
    net = network(family)
    assert unsupported(net.config) is None
    expected = two_rounds(ReferenceModel(net, 512))
    for precision, most in PRECISIONS.items():
        error = (two_rounds(decoder(net, precision)) - expected).abs().max() / expected.std()
        assert error < most, precision


def test_a_dropped_node_is_computed_no_further():
    net = network("llama")
    own = decoder(net)
    whole, reading, (_, right, tip) = read_dropping(own)
    assert reading.alive == {ROOT, right, tip}
    assert set(reading.pruned.values()) == {0}
    for node in reading.alive:
        torch.testing.assert_close(reading.after(node), whole[node], rtol=1e-4, atol=1e-4)
    own.keep([right, tip])
    after = own.read(TokenTree(8, V).freeze()).logits
    torch.testing.assert_close(after[0], two_rounds(decoder(net))[-1], rtol=1e-4, atol=1e-4)


def test_riders_and_taps_agree_with_the_reference():
    net = network("qwen3")
    embedding = torch.randn(64, generator=torch.Generator().manual_seed(2))
    readings = []
    for model in (ReferenceModel(net, 512), decoder(net)):
        tree, right, _ = branching_tree()
        model.prefill(prompt())
        extra_rows = [ExtraRow(right, embedding), ExtraRow(right, embedding, after=0), ExtraRow(ROOT, embedding)]
        readings.append(model.read(tree, request=requested(extra_rows, taps=(0, 2))))
    first, second = readings
    torch.testing.assert_close(first.extra_row_logits, second.extra_row_logits, rtol=1e-4, atol=1e-3)
    for layer in (0, 2):
        torch.testing.assert_close(first.taps[layer], second.taps[layer], rtol=1e-4, atol=1e-3)
        torch.testing.assert_close(first.extra_row_states[layer], second.extra_row_states[layer], rtol=1e-4, atol=1e-3)


def test_an_early_head_on_the_last_layer_is_the_head():
    own = decoder(network("llama"))
    own.prefill(prompt())
    tree, _, _ = branching_tree()
    reading = own.read(tree, request=requested(taps=(2,)))
    torch.testing.assert_close(own.head(reading.taps[2]), reading.logits)


def test_twins_share_weights_and_nothing_else():
    own = decoder(network("llama"))
    twin = own.with_new_cache()
    own.prefill(prompt())
    assert twin.cached(prompt()) == 0
    assert twin.network is own.network


def test_a_long_text_outgrows_the_first_cache():
    net = network("llama")
    own, reference = decoder(net, context_tokens=2000), ReferenceModel(net, 2000)
    text = prompt(1500)
    for model in (own, reference):
        model.prefill(text)
    root = TokenTree(3, V).freeze()
    torch.testing.assert_close(own.read(root).logits, reference.read(root).logits, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("config", "word"),
    [
        (transformers.GPT2Config(), "gpt2"),
        (transformers.LlamaConfig(**SIZES, hidden_act="gelu"), "gelu"),
        (transformers.Gemma3TextConfig(**SIZES, final_logit_softcapping=30.0), "final_logit_softcapping"),
        (
            transformers.LlamaConfig(
                **SIZES, rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}
            ),
            "dynamic",
        ),
    ],
)
def test_what_it_cannot_run_it_says(config, word):
    assert word in unsupported(config)


def test_a_model_with_a_sliding_window_loads_with_its_whole_context(tmp_path):
    config_class, extra = FAMILIES["gemma3"]
    config = config_class(**(SIZES | {"vocab_size": len(TOKENS)}), **extra)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    write_tokenizer(tmp_path)
    spec = ModelSpec("gemma", (PathSource(tmp_path),), ())
    loaded = load_model(spec, tmp_path, torch.device("cpu"), "float32")
    assert isinstance(loaded.model, Decoder)
    assert (loaded.model.context_tokens, loaded.notes) == (SIZES["max_position_embeddings"], ())


def test_tied_embeddings_are_held_once():
    net = network("llama, tied")
    assert net.config.tie_word_embeddings
    weights = Builder(Shape.of(net.config), source_of(net), "float32", torch.device("cpu")).build()
    assert weights.table is not None
    assert weights.table is weights.head
    linears = [each for layer in weights.layers for each in (layer.qkv, layer.o, layer.gate_up, layer.down)]
    assert weights.nbytes == weights.table.nbytes + sum(each.nbytes for each in linears)
