"""Products of 4 and 8 bits on CUDA are those of the dequantised weights, however many rows; here, on a stand-in."""

import pytest
import torch
from pretended_device import pretended
from test_decoder import network, source_of
from test_linear_layers import dequantised, four_bit, rounded_to_eight_bits

from specchat.errors import UsageError
from specchat.models.decoder import cuda_linear as cuda
from specchat.models.decoder.cuda_linear import CudaInt4Linear, CudaInt8Linear, int4_works, int8_works
from specchat.models.decoder.layer_weights import Builder
from specchat.models.decoder.shape import Shape
from specchat.models.machine import choose_precision
from specchat.models.weights.weight_source import GROUP, AdjustedSource

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
gpu = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
SIZES = [(192, 32), (192, 64), (192, 128), (64, 96)]


class StandIn:
    """Packs and multiplies as torch's CUDA kernels do, in an order of its own within each tile."""

    def __init__(self):
        self.products = 0

    def order(self, size):
        return torch.randperm(size, generator=torch.Generator().manual_seed(size))

    def pack(self, pairs, inner):
        assert pairs.dtype == torch.uint8
        numbers = torch.stack([pairs >> 4, pairs & 15], dim=-1).flatten(1)
        out, length = numbers.shape
        tiles = numbers.view(out // 8, 8, length // (16 * inner), 16 * inner).transpose(1, 2).flatten(2)
        nibbles = (
            tiles[..., self.order(tiles.shape[-1]).to(tiles.device)].long().view(*tiles.shape[:2], 32, inner // 2, 8)
        )
        packed = (nibbles << torch.arange(0, 32, 4, device=pairs.device)).sum(-1)
        return torch.where(packed >= 1 << 31, packed - (1 << 32), packed).to(torch.int32)

    def multiply(self, x, packed, group, scales):
        assert x.dtype == torch.bfloat16
        assert group == GROUP
        self.products += 1
        down, across, _, half = packed.shape
        nibbles = (packed[..., None] >> torch.arange(0, 32, 4, dtype=torch.int32)) & 15
        tiles = torch.empty(down, across, 256 * half, dtype=torch.int32)
        tiles[..., self.order(256 * half)] = nibbles.flatten(2)
        numbers = tiles.view(down, across, 8, -1).transpose(1, 2).reshape(down * 8, -1)
        scale, zero = scales.float().transpose(0, 1).repeat_interleave(GROUP, dim=1).unbind(-1)
        return (x.float() @ ((numbers - 8) * scale + zero).bfloat16().float().t()).bfloat16()


@pytest.fixture
def stand_in(monkeypatch):
    made = StandIn()
    monkeypatch.setattr(torch, "_convert_weight_to_int4pack", made.pack)
    monkeypatch.setattr(torch, "_weight_int4pack_mm", made.multiply)
    return made


def off_by(product, dense, rows, device=CPU, bias=None):
    x = torch.randn(rows, dense.shape[1], generator=torch.Generator().manual_seed(6)).bfloat16()
    expected = x.float() @ dense.t() + (0 if bias is None else bias)
    return (product(x.to(device)).float().cpu() - expected).abs().max() / expected.abs().max()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("rows", [1, 16, 64, 130, 512, 513])
def test_four_bits_multiply_as_their_dequantised_weights(stand_in, size, rows):
    groups, bias = four_bit(*size), torch.linspace(-9, 9, size[0])
    product = CudaInt4Linear(groups, bias, CPU)
    assert off_by(product, dequantised(groups), rows, bias=bias) < 0.02
    assert stand_in.products == (rows <= 512)


def test_weights_rebuilt_block_by_block_are_the_same(stand_in, monkeypatch):
    product, x = CudaInt4Linear(four_bit(200, 64), None, CPU), torch.ones(513, 64).bfloat16()
    whole = product(x)
    monkeypatch.setattr(cuda, "_AT_ONCE", 24 * 64)
    assert torch.equal(product(x), whole)


def test_rebuilt_weights_are_the_kernels_to_the_last_bit(stand_in):
    groups = four_bit()
    product = CudaInt4Linear(groups, None, CPU)
    identity = torch.eye(groups.numbers.shape[1]).bfloat16()
    assert torch.equal(
        product._dense(slice(0, 192)), stand_in.multiply(identity, product._packed, GROUP, product._scales).t()
    )


def test_rows_of_the_weights_are_those_that_are_multiplied(stand_in):
    ids = torch.tensor([9, 0, 191, 9])
    groups = four_bit()
    four = CudaInt4Linear(groups, None, CPU)
    assert torch.equal(four.rows(ids), four._dense(slice(0, 192))[ids])
    weight = torch.randn(192, 128, generator=torch.Generator().manual_seed(4))
    torch.testing.assert_close(CudaInt8Linear(weight, None, CPU).rows(ids), rounded_to_eight_bits(weight)[ids])


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "int8", "int4"])
def test_tied_embeddings_are_held_once_on_a_device(precision, stand_in):
    """In int4 without Triton: the case with it is in test_grouped_codes.py."""
    net = network("llama, tied")
    with pretended() as device:
        source = AdjustedSource(source_of(net), rounds=precision == "int4")
        weights = Builder(Shape.of(net.config), source, precision, device).build()
        assert weights.table is weights.head
        linears = [each for layer in weights.layers for each in (layer.qkv, layer.o, layer.gate_up, layer.down)]
        assert weights.nbytes == weights.head.nbytes + sum(each.nbytes for each in linears)
        assert weights.embed([3, 5]).shape == (2, net.config.hidden_size)


def test_a_kernel_that_works_is_found_to_work(stand_in):
    int4_works.cache_clear()
    assert int4_works(CPU)
    int4_works.cache_clear()


def test_a_kernel_that_multiplies_wrongly_is_found_not_to_work(stand_in, monkeypatch):
    monkeypatch.setattr(torch, "_weight_int4pack_mm", lambda *args: stand_in.multiply(*args).roll(1, 1))
    int4_works.cache_clear()
    assert not int4_works(CPU)
    int4_works.cache_clear()


def test_a_device_without_the_kernels_is_found_not_to_work():
    int4_works.cache_clear()
    assert not int4_works(CPU), "torch has this kernel for devices only"


@pytest.mark.parametrize("rows", [1, 16, 64, 130])
def test_eight_bits_multiply_as_their_dequantised_weights(rows):
    weight = torch.randn(192, 128, generator=torch.Generator().manual_seed(4))
    bias = torch.linspace(-9, 9, 192)
    product = CudaInt8Linear(weight, bias, CPU)
    product._scale = product._scale.bfloat16() if rows < 64 else product._scale  # the processor's kernel wants it so
    assert off_by(product, rounded_to_eight_bits(weight), rows, bias=bias) < 0.02


@pytest.mark.parametrize("works", [True, False])
def test_four_bit_files_run_in_four_bits_where_the_device_can(monkeypatch, works):
    monkeypatch.setattr(cuda, "int4_works", lambda device: works)
    monkeypatch.setattr("specchat.models.machine.native_bfloat16", lambda device: True)
    assert choose_precision("auto", CUDA, quantised=True, own=True) == ("int4" if works else "bfloat16")
    assert choose_precision("auto", CUDA, quantised=False, own=True) == "bfloat16"
    assert choose_precision("auto", CUDA, quantised=True, own=False) == "bfloat16"


@pytest.mark.parametrize("wanted", ["int4", "int8"])
def test_whole_numbers_are_refused_where_they_do_not_work(monkeypatch, wanted):
    for works in (True, False):
        monkeypatch.setattr(cuda, f"{wanted}_works", lambda device, works=works: works)
        if works:
            assert choose_precision(wanted, CUDA, quantised=True, own=True) == wanted
        else:
            with pytest.raises(UsageError, match="does not work on cuda"):
                choose_precision(wanted, CUDA, quantised=True, own=True)
    with pytest.raises(UsageError, match="mps"):
        choose_precision(wanted, torch.device("mps"), quantised=True, own=True)
    with pytest.raises(UsageError, match="own decoder"):
        choose_precision(wanted, CUDA, quantised=True, own=False)


class TestOnADevice:
    pytestmark = gpu

    @pytest.mark.parametrize("size", SIZES)
    @pytest.mark.parametrize("rows", [1, 5, 16, 63, 64, 130])
    def test_four_bits_multiply_as_their_dequantised_weights(self, size, rows):
        groups, bias = four_bit(*size), torch.linspace(-9, 9, size[0])
        assert off_by(CudaInt4Linear(groups, bias, CUDA), dequantised(groups), rows, CUDA, bias) < 0.02

    def test_rebuilt_weights_are_the_kernels(self):
        groups = four_bit()
        product = CudaInt4Linear(groups, None, CUDA)
        identity = torch.eye(groups.numbers.shape[1], device=CUDA).bfloat16()
        kernels = torch._weight_int4pack_mm(identity, product._packed, GROUP, product._scales).t()
        torch.testing.assert_close(product._dense(slice(0, 192)), kernels, rtol=1e-2, atol=1e-3)

    @pytest.mark.parametrize("rows", [1, 16, 64, 130])
    def test_eight_bits_multiply_as_their_dequantised_weights(self, rows):
        if not int8_works(CUDA):
            pytest.skip("torch has no 8-bit product for this device")
        weight = torch.randn(192, 128, generator=torch.Generator().manual_seed(4))
        product = CudaInt8Linear(weight, None, CUDA)
        assert off_by(product, rounded_to_eight_bits(weight), rows, CUDA) < 0.02
