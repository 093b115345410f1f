"""Damaged weights are told in place of an empty reply, with the name of the model."""

from __future__ import annotations

import pytest
from engine_driver import HELLO
from safetensors.numpy import load_file, save_file
from tiny_models import add_tiny_pair

from specchat.core.target_draw import draw_library
from specchat.engine.protocol import events as ev
from specchat.engine.protocol.commands import Change, Generate, Load

needs_native = pytest.mark.skipif(draw_library() is None, reason="there is no C compiler here")
FORMATS = [("float32", "auto"), ("bfloat16", "auto"), ("int8", "torch")]


@pytest.fixture
def damaged(own, tmp_path):
    """An engine, and a pair whose target has one weight that is no number."""
    add_tiny_pair(tmp_path)
    file = tmp_path / "weights" / "model.safetensors"
    tensors = load_file(file)
    tensors["model.layers.1.mlp.up_proj.weight"][3, 5] = float("nan")
    save_file(tensors, file)
    return own


@pytest.mark.parametrize(("dtype", "kernels"), FORMATS)
def test_a_weight_that_is_no_number_is_told_with_the_name_of_its_model(damaged, dtype, kernels):
    settings = {"pair": "tiny", "dtype": dtype, "kernels": kernels, "max_tokens": 20, "drafter": "prompt_lookup"}
    damaged.send(Load(settings)).until(ev.Ready)
    for id, temperature in enumerate((0.0, 0.9)):
        damaged.send(Change({"temperature": temperature}), Generate(id, HELLO, 7))
        failed = damaged.until(ev.Failed)
        assert failed.kind == "NotNumbers"
        assert failed.exit_code == 1
        assert failed.message == (
            "tiny-model gives logits that are not numbers: its weights, or what it was given, are damaged"
        )


@needs_native
@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_the_native_kernels_name_its_tensor_when_it_is_loaded(damaged, dtype):
    damaged.send(Load({"pair": "tiny", "dtype": dtype, "kernels": "native"}))
    failed = damaged.until(ev.Failed)
    assert "tensor model.layers.1.mlp.up_proj.weight" in failed.message
    assert failed.message.endswith("holds numbers that are not finite")


DAMAGES = {
    "model.safetensors": b"no weights at all",
    "config.json": b'{"model_type": "llama", "hidden_size": -1}',
    "tokenizer.json": b"{",
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_file_of_a_model_is_refused_like_any_other_wrong_input(own, tmp_path, name):
    add_tiny_pair(tmp_path)
    (tmp_path / "weights" / name).write_bytes(DAMAGES[name])
    own.send(Load({"pair": "tiny"}))
    failed = own.until(ev.Failed)
    assert name.partition(".")[0] in failed.message
    assert failed.exit_code == 2
