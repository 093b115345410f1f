"""Tables of rotations grow with the text: they take little at first, and have the same bits as if made at once."""

import pytest
import torch
from cuda_graph_stand_in import FrozenRecorder
from native_kit import native, needs_native
from rows import each_row
from tensor_bytes import TensorBytes
from test_cuda_graphs import eager
from test_decoder import FAMILIES, V, decoder, network, prompt
from tiny_models import tiny_folder, tiny_gguf

from specchat.config import ModelSpec, PathSource
from specchat.core.tree import TokenTree
from specchat.models.decoder import kv_cache as module
from specchat.models.decoder.decoder import Decoder
from specchat.models.decoder.kv_cache import RotationTables
from specchat.models.decoder.recorded_network import GraphNetwork
from specchat.models.decoder.shape import Shape
from specchat.models.model_loading import load_model

CPU = torch.device("cpu")
MODELS = {
    "torch": lambda: decoder(network("llama, scaled rotation")),
    "recorded": lambda: Decoder(GraphNetwork(eager("gemma3"), FrozenRecorder(0)), 512),
    "native": lambda: native(network("gemma3")),
}
EVERY_MODEL = [pytest.param(name, marks=[needs_native] if name == "native" else []) for name in MODELS]


@each_row("family", FAMILIES)
@each_row("ends", [[17, 18, 33, 40, 1000], [5000]])
def test_growing_changes_no_bit(family, ends, monkeypatch):
    shape = Shape.of(network(family).config)
    monkeypatch.setattr(module, "_FIRST_POSITIONS", 16)
    tables = RotationTables(shape, CPU, 4096)
    for end in ends:
        at_once = [kind.rotations(8192) for kind in shape.attention_kinds]
        for grown, whole in zip(tables.until(end), at_once, strict=True):
            if grown is None:  # layers that do not rotate
                assert whole is None
                continue
            assert len(grown) == tables.positions >= end
            assert torch.equal(torch.view_as_real(grown), torch.view_as_real(whole[: len(grown)]))


def test_a_table_that_suffices_stays_where_it_is():
    tables = RotationTables(Shape.of(network("llama").config), CPU, 512)
    assert tables.until(512 + 1024) is tables.until(1)


def test_little_more_is_made_than_the_context_holds(monkeypatch):
    monkeypatch.setattr(module, "_FIRST_POSITIONS", 16)
    tables = RotationTables(Shape.of(network("llama").config), CPU, 4096)
    tables.until(3000)
    assert tables.positions == 3000
    tables.until(3001)
    assert tables.positions == 4096 + 1024


@pytest.mark.parametrize("name", EVERY_MODEL)
def test_a_text_that_outgrows_them_is_read_as_if_they_had_been_long_enough(name, monkeypatch):
    def said(model):
        found = []
        models = [model, model.view(layers=[0, 1]), model.for_joint_passes()]
        for length in (20, 21, 40, 90):
            root = TokenTree(length % V, V).freeze()
            for own in models:
                own.prefill(prompt(length))
                found.append(own.read(root).logits.clone())
                own.keep([])
        return torch.cat(found)

    whole = said(MODELS[name]())
    monkeypatch.setattr(module, "_FIRST_POSITIONS", 16)
    grown = MODELS[name]()
    assert grown.rotations.positions == 16
    assert torch.equal(said(grown), whole)
    assert grown.rotations.positions > 90


@pytest.mark.parametrize("dtype", [pytest.param("int8", marks=needs_native), "float32"])
@pytest.mark.parametrize("kind", ["folder", "gguf"])
def test_a_claimed_context_takes_no_memory(kind, dtype, tmp_path):
    tokens = 1 << 23
    if kind == "folder":
        path = tiny_folder(tmp_path / "model", {"max_position_embeddings": tokens})
    else:
        path = tiny_gguf(tmp_path / "model.gguf", {"context_length": tokens})
    counted = TensorBytes()
    with counted:
        loaded = load_model(ModelSpec("m", (PathSource(path),)), path, CPU, dtype)
    assert loaded.model.context_tokens == tokens
    assert counted.peak < 128e6  # an arena of 64 MiB; 64 bytes for each of so many positions would be 537e6


def test_what_growing_takes_is_foretold(monkeypatch):
    monkeypatch.setattr(module, "_FIRST_POSITIONS", 1024)
    shape = Shape.of(network("gemma3").config)
    for end in (1024, 1025, 5000, 20000):
        tables = RotationTables(shape, CPU, 16384)
        foretold, first = tables.bytes_until(end), tables.bytes_until(0)
        counted = TensorBytes()
        with counted:
            tables.until(end)
        assert first == 0
        assert counted.peak <= foretold + 1024 * 2 * 16 * 8
        assert (foretold == 0) == (end == 1024)
    assert tables.bytes_until(0) > 0


def test_a_limited_context_limits_them_too(monkeypatch):
    monkeypatch.setattr(module, "_FIRST_POSITIONS", 1024)
    model = decoder(network("llama"), context_tokens=100_000)
    longer = model.rotations.bytes_until(1500)
    model.limit_context_(100)
    assert model.rotations.bytes_until(1500) < longer
    model.rotations.until(1100)
    assert model.rotations.positions == 100 + 1024
