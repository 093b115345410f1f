"""`dtype = "int4"` of weights that have more bits: said, and on a device really 4 bits."""

from __future__ import annotations

import pytest
import torch
from loading_kit import load
from pretended_device import pretended
from tiny_models import tiny_folder, tiny_gguf

from specchat.config import ModelSpec, PathSource
from specchat.models import machine, model_loading
from specchat.models.decoder.eager import EagerNetwork
from specchat.models.decoder.layer_weights import Builder


@pytest.fixture
def folder(tmp_path):
    return tiny_folder(tmp_path / "model")


def test_on_a_device_they_are_rounded_and_this_is_said(folder, monkeypatch):
    sources = []

    def on_host(shape, source, precision, device, kernels, limit=None):
        sources.append(source)
        return EagerNetwork(Builder(shape, source, "float32", torch.device("cpu")).build()), ()

    monkeypatch.setattr(model_loading, "own_network", on_host)
    monkeypatch.setattr(machine, "multiplies", lambda precision, device: True)
    with pretended() as device:
        for wanted in ("int4", "bfloat16"):
            spec = ModelSpec("m", (PathSource(folder),))
            loaded = model_loading.load_model(spec, folder, device, wanted)
            said = [note for note in loaded.notes if "rounded to 4 bits, so texts are not those of m itself" in note]
            assert len(said) == (wanted == "int4")
    rounded, whole = (source.four_bit("down", 0) for source in sources)
    assert rounded is not None
    assert whole is None


def test_on_a_processor_they_are_taken_in_8_bits_and_this_is_said(folder, tmp_path):
    said = "the weights of m have more than 4 bits: with dtype = 'int4' they are taken in 8 bits"
    assert said in load(folder, wanted="int4").notes
    assert said not in load(folder).notes
    assert said not in load(tiny_gguf(tmp_path / "model.gguf"), wanted="int4").notes
