"""A decoder's shape is read from a configuration without importing transformers' networks."""

import subprocess
import sys

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from specchat.models.decoder.shape import Shape

ROTATIONS = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 4.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 32.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8192},
    "yarn, blurred": {
        "rope_type": "yarn",
        "factor": 4.0,
        "beta_fast": 24.0,
        "beta_slow": 0.7,
        "truncate": False,
        "mscale": 0.7,
        "mscale_all_dim": 0.4,
    },
    "yarn, scaled": {
        "rope_type": "yarn",
        "factor": 1.5,
        "original_max_position_embeddings": 1024,
        "attention_factor": 1.25,
    },
}


@pytest.mark.parametrize("head_dim", [None, 96])
@pytest.mark.parametrize("kind", ROTATIONS)
def test_the_rotation_is_the_one_of_transformers(kind, head_dim):
    rotation = {"rope_theta": 500000.0, **ROTATIONS[kind]}
    config = LlamaConfig(hidden_size=512, num_attention_heads=8, head_dim=head_dim, rope_parameters=rotation)
    expected = LlamaRotaryEmbedding(config)
    (kind,) = Shape.of(config).attention_kinds
    assert torch.equal(kind.frequencies, expected.inv_freq)
    cosine, sine = expected(torch.zeros(1), torch.arange(40)[None])
    half = kind.frequencies.numel()
    torch.testing.assert_close(kind.rotations(40)[:, 0].real, cosine[0, :, :half], rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(kind.rotations(40)[:, 0].imag, sine[0, :, :half], rtol=1e-6, atol=1e-6)


def test_no_network_of_transformers_is_imported(preloaded):
    program = """
import sys
from transformers import LlamaConfig
from specchat.models.decoder.shape import Shape
Shape.of(LlamaConfig())
assert "transformers.models.llama.configuration_llama" in sys.modules
assert "transformers.models.llama.modeling_llama" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)
