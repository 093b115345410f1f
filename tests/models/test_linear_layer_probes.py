"""A product of whole numbers that this torch lacks is found out by trying it, replaced, and told."""

import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from loading_kit import load, logits_of
from tiny_models import gguf_sizes, tiny_gguf

from specchat.compiled.build import NativeUnavailable
from specchat.errors import UsageError
from specchat.models.cpu_kernels import kernels
from specchat.models.decoder import linear_layers as probes
from specchat.models.machine import choose_precision, multiplies

CPU = torch.device("cpu")
PROBES = (probes.int8_works, probes.int4_works, probes.packed_works)
FOUR_BIT = {name: Kind.Q4_1 for name, sizes in gguf_sizes().items() if len(sizes) == 2 and name != "token_embd.weight"}


@pytest.fixture
def hide(monkeypatch):
    """Hides operations of torch: they are as on a platform whose build lacks them."""

    def missing(*_):
        raise AttributeError("'_OpNamespace' object has no attribute")

    def hidden(*operations):
        for module, name in operations:
            monkeypatch.setattr(module, name, missing)
        for probe in PROBES:
            probe.cache_clear()

    yield hidden
    monkeypatch.undo()
    for probe in PROBES:
        probe.cache_clear()


@pytest.fixture
def no_native(monkeypatch):
    def unavailable(processor="native"):
        raise NativeUnavailable("none here")

    monkeypatch.setattr(kernels, "kernels_for", unavailable)


INT8, INT4 = (torch.ops.onednn, "qlinear_prepack"), (torch, "_weight_int4pack_mm_for_cpu")
PACKED = (torch.ops.mkldnn, "_reorder_linear_weight")


@pytest.mark.skipif(not probes.int8_works(), reason="torch multiplies 8 bits inexactly on this processor")
def test_a_tied_head_of_8_bits_runs_where_torch_has_no_product_for_it(tmp_path, hide):
    path = tiny_gguf(tmp_path / "m.gguf", kinds=FOUR_BIT)
    usual = load(path, "torch")
    assert usual.notes == ()
    expected = logits_of(usual)
    hide(INT8)
    loaded = load(path, "torch")
    assert loaded.precision == "int4"
    assert [note for note in loaded.notes if "no int8 product" in note]
    assert (logits_of(loaded) - expected).abs().max() < 0.05 * expected.std()


def test_without_a_product_of_4_bits_nothing_is_lost_but_time(tmp_path, hide):
    path = tiny_gguf(tmp_path / "m.gguf", kinds=FOUR_BIT)
    expected = logits_of(load(path, "torch"))
    hide(INT4, INT8, PACKED)
    loaded = load(path, "torch", "int4")
    assert [note for note in loaded.notes if "no int4 product" in note]
    assert (logits_of(loaded) - expected).abs().max() < 0.05 * expected.std()


def test_bfloat16_needs_no_layout_of_its_own(tmp_path, hide):
    path = tiny_gguf(tmp_path / "m.gguf")
    expected = logits_of(load(path, "torch", "bfloat16"))
    hide(PACKED)
    assert (logits_of(load(path, "torch", "bfloat16")) - expected).abs().max() < 0.05 * expected.std()


def test_a_precision_without_kernels_is_not_chosen(hide, no_native):
    assert choose_precision("auto", CPU, quantised=True, own=True) == "int4"
    hide(INT8, INT4)
    assert not multiplies("int8", CPU)
    assert choose_precision("auto", CPU, quantised=True, own=True) in ("bfloat16", "float32")
    for wanted in ("int8", "int4"):
        with pytest.raises(UsageError, match="nearest that works"):
            choose_precision(wanted, CPU, quantised=True, own=True)


def test_products_with_other_results_do_not_pass(monkeypatch, hide):
    real = torch.ops.onednn.qlinear_pointwise
    monkeypatch.setattr(torch.ops.onednn, "qlinear_pointwise", lambda *inputs: real(*inputs) * 2)
    probes.int8_works.cache_clear()
    assert not probes.int8_works()
