"""What a model's files say is compared with what they hold before any of it is packed, multiplied or passed to C."""

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from gguf import GGUFReader
from loading_kit import load, logits_of, refusal
from rows import each_row
from test_decoder import FAMILIES, network
from tiny_models import HIDDEN, KV_HEADS, TOKENS, tiny_folder, tiny_gguf, write_tokenizer

from specchat.config import ModelSpec, PathSource
from specchat.errors import ModelError
from specchat.models.decoder.layer_weights import Builder
from specchat.models.decoder.shape import Shape
from specchat.models.hub.pair_check import check_pair
from specchat.models.weights.families import FAMILIES as HUB_FAMILIES
from specchat.models.weights.weight_source import TensorSource

CPU = torch.device("cpu")
KERNELS = ["auto", "torch"]


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("write", [lambda p: tiny_gguf(p / "m.gguf"), lambda p: tiny_folder(p / "m")])
def test_a_model_as_it_should_be_is_loaded(tmp_path, write, kernels):
    assert logits_of(load(write(tmp_path), kernels, "int8")).isfinite().all()


WRONG_GGUF_TENSORS = {
    "attention's output has more rows": ({"blk.0.attn_output.weight": (57600, 64)}, "57600 × 64 weights"),
    "attention's output has longer rows": ({"blk.0.attn_output.weight": (64, 128)}, "64 × 128"),
    "a norm has one value": ({"blk.1.ffn_norm.weight": (1,)}, "blk.1.ffn_norm.weight has 1 weights"),
    "the last norm has one value": ({"output_norm.weight": (1,)}, "output_norm.weight has 1"),
    "a norm has rows": ({"blk.1.attn_norm.weight": (2, 32)}, "2 × 32"),
    "up is narrower than gate": ({"blk.1.ffn_up.weight": (64, HIDDEN)}, "ffn_up.weight has 64 × 64"),
    "gate is wider than up": ({"blk.0.ffn_gate.weight": (128, HIDDEN)}, "ffn_gate.weight has 128 × 64"),
    "keys have too few rows": ({"blk.0.attn_k.weight": (16, HIDDEN)}, "attn_k.weight has 16 × 64"),
    "the embedding has fewer rows": ({"token_embd.weight": (100, HIDDEN)}, "token_embd.weight has 100"),
    "a matrix is a vector": ({"blk.0.ffn_down.weight": (96,)}, "ffn_down.weight has 96"),
    "a matrix is missing": ({"blk.1.attn_q.weight": None}, "blk.1.attn_q.weight is missing"),
    "one bias of three": ({"blk.0.attn_q.bias": (64,)}, "blk.0.attn_k.bias is missing"),
    "one norm of two": ({"blk.0.attn_q_norm.weight": (16,)}, "blk.0.attn_k_norm.weight is missing"),
    "a bias is too short": ({"blk.0.attn_output.bias": (32,)}, "attn_output.bias has 32"),
    "norms of heads are too long": (
        {"blk.0.attn_q_norm.weight": (32,), "blk.0.attn_k_norm.weight": (32,)},
        "attn_q_norm.weight has 32",
    ),
}


@each_row("kernels", KERNELS)
@each_row("wrong", WRONG_GGUF_TENSORS)
def test_a_gguf_tensor_of_other_sizes_is_refused_by_name(tmp_path, wrong, kernels):
    sizes, words = WRONG_GGUF_TENSORS[wrong]
    line = refusal(tiny_gguf(tmp_path / "m.gguf", sizes=sizes), kernels)
    assert words in line
    assert "m.gguf" in line


def test_a_row_count_patched_in_place_is_refused(tmp_path):
    path = tiny_gguf(tmp_path / "m.gguf")
    data = path.read_bytes()
    name = data.index(b"blk.0.attn_output.weight")
    at = name + len(b"blk.0.attn_output.weight") + 4 + 8  # dimensions, length of a row
    assert int.from_bytes(data[at : at + 8], "little") == 64
    for rows, words in (
        (57600, "past the end"),
        (96, "overlap"),
        (32, "32 × 64 weights, its configuration says 64 × 64"),
    ):
        path.write_bytes(data[:at] + rows.to_bytes(8, "little") + data[at + 8 :])
        assert words in refusal(path)


WRONG_NUMBERS = {
    "no heads for keys": ("num_key_value_heads", "attention.head_count_kv", 0),
    "heads that do not divide": ("num_key_value_heads", "attention.head_count_kv", 3),
    "more heads": ("num_attention_heads", "attention.head_count", 8),
    "a wider state": ("hidden_size", "embedding_length", 6400),
    "wider layers": ("intermediate_size", "feed_forward_length", 6400),
    "no layers": ("num_hidden_layers", "block_count", 0),
    "layers without end": ("num_hidden_layers", "block_count", 2**31),
    "one layer too many": ("num_hidden_layers", "block_count", 3),
    "no context": ("max_position_embeddings", "context_length", 0),
    "another vocabulary": ("vocab_size", "vocab_size", len(TOKENS) + 1),
    "an epsilon of 0": ("rms_norm_eps", "attention.layer_norm_rms_epsilon", 0.0),
    "an epsilon without end": ("rms_norm_eps", "attention.layer_norm_rms_epsilon", float("inf")),
    "an epsilon that is no number": ("rms_norm_eps", "attention.layer_norm_rms_epsilon", float("nan")),
    "a rotation of base 0": ("rope_theta", "rope.freq_base", 0.0),
    "a rotation of a negative base": ("rope_theta", "rope.freq_base", -1.0),
    "a rotation that is no number": ("rope_theta", "rope.freq_base", float("nan")),
}


@each_row("kernels", KERNELS)
@each_row("wrong", WRONG_NUMBERS)
def test_numbers_that_cannot_be_are_refused(tmp_path, wrong, kernels):
    key, gguf_key, value = WRONG_NUMBERS[wrong]
    for line in (
        refusal(tiny_gguf(tmp_path / "m.gguf", {gguf_key: value}), kernels, "int8"),
        refusal(tiny_folder(tmp_path / "m", {key: value}), kernels, "int8"),
    ):
        assert str(tmp_path / "m") in line


STRANGE = {
    "a window of none": ({"model_type": "mistral", "sliding_window": 0}, "sliding_window = 0, in which a token does"),
    "angles without end": (
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1e-300}},
        "a rotation by angles that are not finite",
    ),
}


@pytest.mark.parametrize("strange", STRANGE)
def test_what_does_not_go_together_names_the_model(tmp_path, strange):
    config, words = STRANGE[strange]
    line = refusal(tiny_folder(tmp_path / "m", config), "torch", "int8")
    assert line.startswith(f"{tmp_path / 'm'}: the configuration says {words}")


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"head_dim": 15}, "head_dim"),
        ({"head_dim": 32}, "128 × 64"),
        ({"hidden_size": "64"}, "hidden_size = '64' is not a whole number"),
        ({"hidden_size": 64.5}, "hidden_size = 64.5"),
        ({"num_hidden_layers": True}, "num_hidden_layers = True"),
        ({"vocab_size": 10**400}, "vocab_size = 1000"),
        ({"rope_scaling": [1]}, "rope_scaling = [1] is not an object"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 0}}, "factor = 0"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 0}}}, "rope_theta = 0"),
        ({"rope_parameters": {"full_attention": 3}}, "full_attention = 3 is not an object"),
        ({"rope_parameters": {"rope_type": ["default"]}}, "rope_type = ['default'] is not a name"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": "x"}}, "rope_theta = 'x'"),
        ({"layer_types": [1, 2]}, "layer_types = [1, 2] is not a list of names"),
        ({"architectures": 3}, "architectures = 3"),
        ({"eos_token_id": "stop"}, "eos_token_id = 'stop'"),
        ({"text_config": 7}, "text_config = 7"),
        ({"model_type": ["llama"]}, "model_type = ['llama']"),
    ],
)
def test_a_configuration_of_the_wrong_kind_names_key_and_value(tmp_path, config, words):
    path = tiny_folder(tmp_path / "m", config)
    assert words in refusal(path)
    spec = ModelSpec("m", (PathSource(path),))
    assert len(check_pair([spec]).refusals) <= 1, "looking at it must not fail either"


ROTATION = {
    "rope_theta": 1e4,
    "factor": 2.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


@pytest.mark.parametrize(
    ("kind", "key"),
    [
        *[(kind, "rope_theta") for kind in ("default", "linear", "llama3")],
        *[(kind, "factor") for kind in ("linear", "llama3")],
    ],
)
def test_a_number_of_the_rotation_that_is_null_is_refused_with_its_key(tmp_path, kind, key):
    config = {"rope_parameters": {"rope_type": kind, **ROTATION, key: None}}
    assert f"{key} = None is not a number" in refusal(tiny_folder(tmp_path / "m", config))


@pytest.mark.parametrize("kind", ["default", "linear", "llama3"])
def test_a_number_that_may_be_left_out_may_be_null(tmp_path, kind):
    rotation = {"rope_type": kind, **ROTATION, "partial_rotary_factor": None}
    config = {"rope_parameters": rotation, "query_pre_attn_scalar": None}
    assert logits_of(load(tiny_folder(tmp_path / "m", config), "torch", "int8")).isfinite().all()


@each_row("file", ["config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"])
@each_row("text", ["", "[]", "{", "[" * 100_000, "\udce9", '{"a": NaN', "\x00"])
def test_a_text_that_is_no_json_object_is_one_line(tmp_path, file, text):
    path = tiny_folder(tmp_path / "m")
    (path / file).write_bytes(text.encode("utf-8", "surrogateescape"))
    assert str(path) in refusal(path)
    check_pair([ModelSpec("m", (PathSource(path),))] * 2)


@pytest.mark.parametrize("kernels", KERNELS)
def test_formats_without_weights_are_refused(tmp_path, kernels):
    name = "model.layers.0.mlp.up_proj.weight"
    line = refusal(tiny_folder(tmp_path / "m", dtypes={name: np.int8}), kernels, "int8")
    assert f"{name} is in format torch.int8" in line


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_norm_that_is_not_finite_is_refused(tmp_path, value):
    name = "blk.0.attn_norm.weight"
    assert f"{name} holds numbers that are not finite" in refusal(tiny_gguf(tmp_path / "m.gguf", values={name: value}))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("kind", [Kind.F32, Kind.F16])
def test_an_embedding_of_its_own_with_one_number_that_is_not_finite_is_refused(tmp_path, kind, value):
    name = "token_embd.weight"
    sizes = {name: (len(TOKENS), HIDDEN), "output.weight": (len(TOKENS), HIDDEN)}
    path = tiny_gguf(tmp_path / "m.gguf", sizes=sizes, kinds={name: kind})
    assert logits_of(load(path, wanted="int8")).isfinite().all()
    tensor = next(tensor for tensor in GGUFReader(path, "r+").tensors if tensor.name == name)
    tensor.data[-1, 3] = value
    line = refusal(path, wanted="int8")
    assert f"{name} holds numbers that are not finite" in line
    assert str(path) in line


def test_weights_of_a_folder_are_compared_too(tmp_path):
    name = "model.layers.1.self_attn.o_proj.weight"
    line = refusal(tiny_folder(tmp_path / "m", sizes={name: (57600, 64)}), wanted="int8")
    assert f"{name} has 57600 × 64 weights, its configuration says 64 × 64" in line


def test_every_format_that_holds_weights_is_read(tmp_path):
    """A control: what differs from the usual file and is right is accepted."""
    kinds = {"blk.0.ffn_up.weight": Kind.F16, "blk.0.ffn_gate.weight": Kind.Q4_1, "blk.1.attn_v.weight": Kind.BF16}
    biases = {
        f"blk.0.attn_{name}.bias": (rows,) for name, rows in (("q", 64), ("k", 16 * KV_HEADS), ("v", 16 * KV_HEADS))
    }
    path = tiny_gguf(tmp_path / "m.gguf", kinds=kinds, sizes={**biases, "output.weight": (len(TOKENS), HIDDEN)})
    for kernels in KERNELS:
        assert logits_of(load(path, kernels)).isfinite().all()


def build(net, state):
    source = TensorSource(state, HUB_FAMILIES[net.config.model_type])
    return Builder(Shape.of(net.config), source, "float32", CPU).build()


@pytest.mark.parametrize("family", FAMILIES)
def test_of_every_family_no_tensor_may_be_missing_or_of_other_sizes(family):
    net = network(family)
    state = net.state_dict()
    build(net, state)
    skipped = "lm_head" if net.config.tie_word_embeddings else "model.layers.0"
    for name in state:
        if name.startswith((skipped, "model.layers.1")):
            continue
        for other in (None, state[name][:-2], torch.cat([state[name]] * 2), state[name][None], state[name].int()):
            changed = {**state, name: other} if other is not None else {k: v for k, v in state.items() if k != name}
            with pytest.raises(ModelError, match=r"the network: tensor"):
                build(net, changed)


def test_a_family_with_norms_after_attention_and_mlp_does_not_run_without_them():
    net = network("gemma3")
    state = {name: tensor for name, tensor in net.state_dict().items() if "post_" not in name}
    with pytest.raises(ModelError, match=r"post_attention_layernorm\.weight is missing"):
        build(net, state)


def test_windows_shorter_than_the_context_do_not_keep_our_own_families_from_loading(tmp_path):
    net = network("gemma3")
    net.save_pretrained(tmp_path)
    write_tokenizer(tmp_path)
    assert net.config.sliding_window < net.config.max_position_embeddings
    loaded = load(tmp_path)
    assert loaded.model.context_tokens == net.config.max_position_embeddings
    assert logits_of(loaded).isfinite().all()
