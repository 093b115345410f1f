"""A decoder's shape is read from a configuration without importing transformers' networks."""

import subprocess
import sys

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from specchat.models.decoder.shape import Shape

ROTATIONS = {
    "default": {},
    "linear": {"factor": 4.0},
    "llama3": {
        "factor": 32.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
    },
}


@pytest.mark.parametrize("head_dim", [None, 96])
@pytest.mark.parametrize("kind", ROTATIONS)
def test_the_rotation_is_the_one_of_transformers(kind, head_dim):
    rotation = {"rope_type": kind, "rope_theta": 500000.0, **ROTATIONS[kind]}
    config = LlamaConfig(hidden_size=512, num_attention_heads=8, head_dim=head_dim, rope_parameters=rotation)
    shape, expected = Shape.of(config), LlamaRotaryEmbedding(config)
    (view,) = shape.attention_kinds
    assert torch.equal(view.frequencies, expected.inv_freq)
    assert expected.attention_scaling == 1, "the rotated values are not scaled"


def test_no_network_of_transformers_is_imported():
    program = """
import sys
from transformers import LlamaConfig
from specchat.models.decoder.shape import Shape
Shape.of(LlamaConfig())
assert "transformers.models.llama.configuration_llama" in sys.modules
assert "transformers.models.llama.modeling_llama" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)
