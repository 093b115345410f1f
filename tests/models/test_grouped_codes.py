"""Weights that keep their file's own bits on a device: the numbers, the bytes, the choice; and the Triton kernel."""

import importlib.util
import os
import subprocess
import sys
import types

import pytest
import torch
from pretended_device import RecordsNothing, pretended
from quantised_rows import MixedSource, dequantised, random_rows
from tiny_models import tiny_gguf

from specchat.cli.doctor import _whole_numbers
from specchat.config import ModelSpec, PathSource
from specchat.core.tree import TokenTree
from specchat.errors import DamagedModel, NotEnoughMemory
from specchat.models.decoder import cuda_linear, layer_weights
from specchat.models.decoder.cuda_linear import GroupedLinear, example, grouped_product, rebuilt_product
from specchat.models.decoder.decoder import Decoder
from specchat.models.decoder.eager import EagerNetwork
from specchat.models.decoder.layer_weights import Builder
from specchat.models.decoder.linear_layers import Stacked
from specchat.models.decoder.recorded_network import GraphNetwork
from specchat.models.model_loading import check_memory
from specchat.models.ranks.network import ShardSource, shares_of
from specchat.models.weights.gguf_header import Kind, read_header
from specchat.models.weights.grouped_codes import LAYOUTS, PackedCodes
from specchat.models.weights.model_files import describe_model, with_working_bytes
from specchat.models.weights.weight_source import AdjustedSource, StoredRows

CPU = torch.device("cpu")
EVERY = pytest.mark.parametrize("kind", LAYOUTS, ids=lambda kind: kind.name)
KERNEL = "specchat.models.decoder.triton_product"


@EVERY
def test_kept_weights_are_those_of_gguf_to_the_bit_in_as_many_bytes(kind):
    data = random_rows(kind, 12, 512)
    expected = dequantised(kind, data)
    packed = PackedCodes.of_stored(StoredRows(int(kind), data, 512), CPU)
    assert packed.shape == (12, 512)
    assert packed.is_finite
    assert torch.equal(packed.rows(slice(3, 9)).dense(), expected[3:9])
    assert torch.equal(packed.rows(torch.tensor([7, 0, 7])).dense(), expected[[7, 0, 7]])
    assert packed.nbytes <= 1.03 * data.nbytes


@EVERY
def test_rows_packed_some_at_a_time_and_joined_are_the_same(kind, monkeypatch):
    data = random_rows(kind, 20, 256)
    stored = StoredRows(int(kind), data, 256).permuted(torch.arange(20).flip(0))
    monkeypatch.setattr("specchat.models.weights.grouped_codes._AT_ONCE", 6 * 256)
    packed = PackedCodes.of_stored(stored, CPU)
    assert torch.equal(packed.rows(slice(None)).dense(), dequantised(kind, data).flip(0))
    joined = PackedCodes.joined([packed, packed])
    assert torch.equal(joined.rows(slice(20, 40)).dense(), packed.rows(slice(None)).dense())


@EVERY
@pytest.mark.parametrize(("dtype", "most"), [(torch.float32, 2e-6), (torch.bfloat16, 0.01)])
def test_products_are_those_of_the_dequantised_weights(kind, dtype, most, monkeypatch):
    data = random_rows(kind, 40, 256)
    monkeypatch.setattr(cuda_linear, "_AT_ONCE", 16 * 256)
    x, bias = torch.randn(7, 256, generator=torch.Generator().manual_seed(1)).to(dtype), torch.linspace(-3, 3, 40)
    layer = GroupedLinear(PackedCodes.of_stored(StoredRows(int(kind), data, 256), CPU), bias, rebuilt_product)
    expected = x.double() @ dequantised(kind, data).double().t() + bias
    found = layer(x)
    assert found.dtype == dtype
    assert (found - expected).abs().max() / expected.abs().max() < most


@pytest.fixture
def kernel(monkeypatch):
    """Stands for the kernel's module; its product is torch's."""
    module = types.ModuleType(KERNEL)
    module.product = rebuilt_product
    monkeypatch.setitem(sys.modules, KERNEL, module)
    grouped_product.cache_clear()
    yield module
    grouped_product.cache_clear()


def test_a_kernel_that_agrees_is_used(kernel):
    with pretended() as device:
        assert all(grouped_product(device, layout) is rebuilt_product for layout in LAYOUTS.values())


def test_a_kernel_that_multiplies_wrongly_is_not_used(kernel):
    kernel.product = lambda x, weight, bias: rebuilt_product(x, weight, bias).roll(1, 1)
    with pretended() as device:
        assert grouped_product(device) == "its products are wrong on this device"


def test_a_kernel_that_cannot_be_compiled_is_not_used(kernel):
    def fails(x, weight, bias):
        raise RuntimeError("no compiler here\nand a long story")

    kernel.product = fails
    with pretended() as device:
        assert grouped_product(device) == "no compiler here"
    assert grouped_product(CPU) == "it is not made for cpu"


def test_without_triton_the_reason_is_said(kernel, monkeypatch):
    monkeypatch.setitem(sys.modules, KERNEL, None)
    source = MixedSource([Kind.Q8_0])
    with pretended() as device:
        assert grouped_product(device) == "Triton is not installed"
        monkeypatch.setattr(layer_weights, "int8_pays", lambda device: False)
        builder = Builder(source.shape, source, "int4", device)
        weights = builder.build()
    assert builder.notes == ("slower than it could be: the Triton kernel is not in use: Triton is not installed",)
    assert weights.nbytes > 1.8 * source.nbytes


@pytest.mark.parametrize("native", [True, False])
def test_a_file_of_every_format_takes_its_own_bytes_and_says_what_its_numbers_say(kernel, native, monkeypatch):
    source = MixedSource()
    tree = TokenTree(5, 96)
    tree.add(0, [6, 7])
    frozen = tree.freeze()

    def logits(model):
        model.prefill(list(range(1, 40)))
        return model.read(frozen).logits.float()

    plain = logits(Decoder(EagerNetwork(Builder(source.shape, source, "float32", CPU).build()), 256))
    with pretended() as device:
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: native)
        grouped_product.cache_clear()
        builder = Builder(source.shape, source, "int4", device)
        weights = builder.build()
        assert builder.notes == ()
        assert weights.nbytes <= 1.03 * source.nbytes
        assert weights.table is weights.head
        assert isinstance(weights.layers[0].qkv, Stacked)
        found = logits(Decoder(GraphNetwork(EagerNetwork(weights), RecordsNothing()), 256)).cpu()
    apart = (found - plain).norm() / (plain - plain.mean(dim=-1, keepdim=True)).norm()
    assert apart < (0.03 if native else 1e-5)


def test_weights_that_are_no_numbers_are_refused_by_name(kernel):
    source = MixedSource([Kind.Q6_K])
    source.rows["down", 1].data[3, 208:210] = 255
    with pretended() as device, pytest.raises(DamagedModel, match="the mixed down holds numbers that are not finite"):
        Builder(source.shape, source, "int4", device).build()


def test_a_model_that_only_guesses_is_rounded_to_4_bits(kernel):
    source = MixedSource([Kind.Q8_0])
    with pretended() as device:
        weights = Builder(source.shape, AdjustedSource(source, rounds=True), "int4", device).build()
    assert weights.nbytes == pytest.approx(source.nbytes * 5 / 8.5)


needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None,
    reason="Triton is not installed: pip install triton (286 MB; torch's builds for CUDA bring it on Linux)",
)

NUMBERS = """
import torch
from quantised_rows import dequantised, random_rows
from specchat.models.decoder import triton_product
from specchat.models.weights.grouped_codes import LAYOUTS, PackedCodes
from specchat.models.weights.weight_source import StoredRows

def check(kind, rows, out, inputs, dtype, bias):
    data = random_rows(kind, out, inputs)
    packed = PackedCodes.of_stored(StoredRows(int(kind), data, inputs), torch.device("cpu"))
    x = torch.randn(rows, inputs, generator=torch.Generator().manual_seed(2)).to(dtype)
    expected = x.double() @ dequantised(kind, data).double().t() + (0 if bias is None else bias)
    found = triton_product.product(x, packed, bias)
    assert found.dtype == dtype
    off = float((found - expected).abs().max() / expected.abs().max())
    assert off < (2e-3 if dtype == torch.float16 else 2e-6), (kind.name, rows, off)

bias = torch.linspace(-3, 3, 70)
for kind in LAYOUTS:
    check(kind, 3, 70, 256, torch.float16, None)
    check(kind, 17, 70, 512, torch.float32, bias)
check(list(LAYOUTS)[0], 1, 70, 2048, torch.float16, bias)  # several programs share a sum
check(list(LAYOUTS)[0], 130, 8, 96, torch.float16, None)
"""


@needs_triton
def test_the_kernels_numbers_by_tritons_interpreter_are_those_of_every_format():
    done = subprocess.run(
        [sys.executable, "-c", NUMBERS],
        env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stderr


ARCHITECTURES = {75: 64, 80: 163, 89: 99, 90: 227}
"""Compute capability → kB of shared memory that a program may take."""


@needs_triton
@pytest.mark.parametrize("capability", ARCHITECTURES)
@pytest.mark.parametrize(("kind", "rows"), [(Kind.Q4_K, 1), (Kind.Q4_K, 128), (Kind.Q6_K, 64)])
@pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION")
def test_the_kernel_compiles_without_spilled_registers(capability, kind, rows, tmp_path, monkeypatch):
    from triton.backends.compiler import GPUTarget

    from specchat.models.decoder.triton_product import compiled_for

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    dtype = torch.float32 if capability < 80 else torch.bfloat16
    made = compiled_for(GPUTarget("cuda", capability, 32), LAYOUTS[kind], rows, 4096, dtype)
    assert made.metadata.shared <= ARCHITECTURES[capability] * 1024
    assert ("mma" in made.asm["ptx"]) is (capability >= 80)
    file = tmp_path / "kernel.cubin"
    file.write_bytes(made.asm["cubin"])
    folder = os.path.join(os.path.dirname(sys.modules["triton"].__file__), "backends", "nvidia", "bin")
    usage = subprocess.run(
        [os.path.join(folder, "cuobjdump"), "-res-usage", file], capture_output=True, text=True, check=True
    ).stdout
    line = next(line for line in usage.splitlines() if "REG:" in line)
    numbers = {name: int(value) for name, value in (part.split(":") for part in line.split() if part.count(":") == 1)}
    assert 0 < numbers["REG"] <= 255
    assert numbers["STACK"] == numbers["LOCAL"] == 0, "registers are spilled"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@EVERY
@pytest.mark.parametrize("rows", [1, 17, 64, 128, 700])
def test_on_a_device_the_kernel_agrees(kind, rows):
    device = torch.device("cuda")
    multiply = grouped_product(device, LAYOUTS[kind])
    assert not isinstance(multiply, str), multiply
    data = random_rows(kind, 200, 1024)
    x = torch.randn(rows, 1024, generator=torch.Generator().manual_seed(3)).bfloat16()
    layer = GroupedLinear(PackedCodes.of_stored(StoredRows(int(kind), data, 1024), device), None, multiply)
    expected = x.float() @ dequantised(kind, data).t()
    assert (layer(x.to(device)).float().cpu() - expected).abs().max() / expected.abs().max() < 0.02


def test_the_memory_that_a_file_needs_is_what_its_bits_take(kernel, tmp_path, monkeypatch):
    file = tiny_gguf(tmp_path / "model.gguf")
    header = read_header(file)
    seen = describe_model(file)
    own = sum(tensor.nbytes for tensor in header.tensors if len(tensor.shape) > 1)
    assert own < seen.kept_bytes < 1.05 * own, "norms are few"
    spec = ModelSpec("m", (PathSource(file),))
    for product, needed in ((rebuilt_product, seen.kept_bytes), ("it does not work", 2 * seen.parameters)):
        monkeypatch.setattr(cuda_linear, "grouped_product", lambda device, product=product: product)
        least = with_working_bytes(needed)
        with pretended(memory=least) as device:
            check_memory(spec, file, device, "int4")
        with pretended(memory=least - 1) as device, pytest.raises(NotEnoughMemory, match="m needs about"):
            check_memory(spec, file, device, "int4")


def test_shares_of_a_table_keep_their_own_rows():
    source = MixedSource([Kind.Q6_K])
    shares = [ShardSource(source, share, source.shape) for share in shares_of(source.shape, 2)]
    tables = [PackedCodes.of_stored(share.stored("embed"), CPU).rows(slice(None)).dense() for share in shares]
    assert torch.equal(torch.cat(tables), source.dense("embed"))
    assert shares[0].stored("q", 0) is None


def test_doctor_says_whether_the_kernel_is_in_use(kernel, monkeypatch):
    monkeypatch.setattr("specchat.models.machine.multiplies", lambda precision, device: True)
    with pretended() as device:
        assert _whole_numbers(device) == "a Triton kernel, for files of 4 to 8 bits"
        grouped_product.cache_clear()
        monkeypatch.setitem(sys.modules, KERNEL, None)
        assert _whole_numbers(device).endswith("; the Triton kernel is not in use: Triton is not installed")


@EVERY
def test_what_the_kernel_is_tried_with_differs_from_place_to_place(kind):
    codes = example(LAYOUTS[kind])
    dense = codes.dense()
    assert dense.isfinite().all()
    assert all(not torch.equal(dense, dense.roll(by, dim)) for by in (1, 16, 32) for dim in (0, 1))
    assert torch.equal(PackedCodes.of(codes).rows(slice(None)).dense(), dense)
    assert int(codes.numbers.max()) < 1 << LAYOUTS[kind].bits
