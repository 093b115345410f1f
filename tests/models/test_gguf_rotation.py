"""What a GGUF file says of its rotation reaches the model, or the file is refused."""

import numpy as np
import pytest
import torch
from transformers import LlamaConfig

from specchat.config import ModelSpec
from specchat.errors import ModelError
from specchat.models.decoder.shape import AttentionKind, Shape
from specchat.models.model_loading import load_model, open_config, open_weights
from specchat.models.weights.gguf_header import FACTORS
from specchat.models.weights.model_files import describe_model
from tests.tiny_models import CONFIG, HEAD_DIM, tiny_gguf

LLAMA_3 = {
    "rope_type": "llama3",
    "factor": 32.0,
    "high_freq_factor": 4.0,
    "low_freq_factor": 1.0,
    "original_max_position_embeddings": 8192,
}


def shape_of(path):
    _, config = open_config(path)
    return open_weights(path, config)[1]


def frequencies(rotation):
    described = {key: value for key, value in CONFIG.items() if key not in ("model_type", "rope_theta")}
    shape = Shape.of(LlamaConfig(**described, rope_parameters={"rope_theta": 10000.0, **rotation}))
    return shape.attention_kinds[0].frequencies


def test_the_factors_of_a_llama_3_file_give_transformers_rotation(tmp_path, monkeypatch):
    plain, expected = frequencies({"rope_type": "default"}), frequencies(LLAMA_3)
    factors = (plain / expected).numpy().astype(np.float32)
    monkeypatch.setattr("tests.tiny_models._array", lambda name, shape: factors if name == FACTORS else np.ones(shape))
    path = tiny_gguf(tmp_path / "x.gguf", sizes={FACTORS: (HEAD_DIM // 2,)})
    (kind,) = shape_of(path).attention_kinds
    torch.testing.assert_close(kind.frequencies, expected, rtol=1e-6, atol=0)
    assert not torch.allclose(expected, plain)


@pytest.mark.parametrize(("numbers", "divisor"), [
    ({"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}, 4.0),
    ({"rope.scaling.factor": 4.0}, 4.0),
    ({"rope.scaling.type": "none", "rope.scaling.factor": 4.0}, 1.0),
    ({}, 1.0),
])  # fmt: skip
def test_a_linear_factor_divides_every_angle(tmp_path, numbers, divisor):
    (kind,) = shape_of(tiny_gguf(tmp_path / "x.gguf", numbers=numbers)).attention_kinds
    assert torch.equal(kind.frequencies, frequencies({"rope_type": "default"}) / divisor)


def test_yarn_is_what_transformers_makes_of_the_same_numbers(tmp_path):
    numbers = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 64}
    (kind,) = shape_of(tiny_gguf(tmp_path / "x.gguf", numbers=numbers)).attention_kinds
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    assert torch.equal(kind.frequencies, frequencies(yarn))
    assert not torch.equal(kind.frequencies, frequencies({"rope_type": "default"}))
    assert kind.scale == pytest.approx(1 + 0.1 * np.log(4))
    more = {"rope.scaling.attn_factor": 0.5, "rope.scaling.yarn_log_multiplier": 0.5}
    (kind,) = shape_of(tiny_gguf(tmp_path / "y.gguf", numbers=numbers | more)).attention_kinds
    assert kind.scale == pytest.approx(0.5 * (1 + 0.1 * np.log(4)) / (1 + 0.05 * np.log(4)))


def test_layers_with_a_window_keep_their_angles_under_a_linear_factor():
    ones = torch.ones(4)
    shape = Shape.of(LlamaConfig(**{key: value for key, value in CONFIG.items() if key != "model_type"}))
    object.__setattr__(shape, "attention_kinds", (AttentionKind(8, ones), AttentionKind(None, ones)))
    near, far = shape.rotated_slower(8.0, None).attention_kinds
    assert torch.equal(near.frequencies, ones)
    assert torch.equal(far.frequencies, ones / 8)


@pytest.mark.parametrize(("changes", "said"), [
    ({"numbers": {"rope.scaling.type": "longrope", "rope.scaling.factor": 4.0}}, "rope.scaling.type = 'longrope'"),
    ({"numbers": {"rope.scaling.type": "yarn", "rope.scaling.yarn_beta_fast": -1.0}}, "beta_fast = -1.0"),
    ({"numbers": {"rope.scaling.factor": -1.0}}, "rope.scaling.factor = -1.0"),
    ({"sizes": {"rope_factors_long.weight": (8,)}}, "rope_factors_long.weight"),
    ({"sizes": {FACTORS: (7,)}}, "not 8 finite numbers"),
    ({"sizes": {FACTORS: (8,)}, "values": {FACTORS: 0.0}}, "not 8 finite numbers"),
    ({"sizes": {FACTORS: (8,)}, "values": {FACTORS: float("nan")}}, "not 8 finite numbers"),
])  # fmt: skip
def test_a_rotation_that_cannot_be_computed_is_refused(tmp_path, changes, said):
    path = tiny_gguf(tmp_path / "x.gguf", **changes)
    with pytest.raises(ModelError, match=said):
        load_model(ModelSpec("x", sources=()), path, torch.device("cpu"), "float32")
    if "sizes" not in changes:
        assert said in describe_model(path).refusal
