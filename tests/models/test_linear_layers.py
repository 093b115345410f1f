"""Within a precision, every row count computes the same function of the same weights, and no row sees another."""

import pytest
import torch
from rows import each_row

from specchat.models.decoder.linear_layers import (
    DenseLinear,
    Int4Linear,
    Int8Linear,
    PackedLinear,
    Stacked,
    int8_works,
    packed_works,
)
from specchat.models.weights.weight_source import GROUP, FourBit

OUT, IN = 192, 128

with_int8 = pytest.mark.skipif(not int8_works(), reason="torch multiplies 8 bits inexactly on this processor")


def four_bit(out=OUT, length=IN):
    generator = torch.Generator().manual_seed(3)
    numbers = torch.randint(0, 16, (out, length), generator=generator).to(torch.uint8)
    scale = torch.rand(out, length // GROUP, generator=generator).bfloat16().float() * 0.1
    return FourBit(numbers, scale, -8 * scale)


def dequantised(groups):
    out, length = groups.numbers.shape
    values = groups.numbers.float().view(out, -1, GROUP) * groups.scale[..., None] + groups.minimum[..., None]
    return values.view(out, length)


def weight():
    return torch.randn(OUT, IN, generator=torch.Generator().manual_seed(4))


def bias():
    return torch.randn(OUT, generator=torch.Generator().manual_seed(5))


def kernels():
    """Those that work on this processor."""
    found = {
        "float32": (DenseLinear(weight(), bias()), weight(), 1e-5),
        "int4": (Int4Linear(four_bit(), bias()), dequantised(four_bit()), 2e-2),
        "int4 in another order": (Int4Linear(four_bit(OUT - 16), None), dequantised(four_bit(OUT - 16)), 2e-2),
    }
    if packed_works():
        found["bfloat16"] = (PackedLinear(weight(), bias()), weight().bfloat16().float(), 2e-2)
    if int8_works():
        found["int8"] = (Int8Linear(weight(), bias()), rounded_to_eight_bits(weight()), 1e-3)
    return found


def rounded_to_eight_bits(values):
    scale = values.abs().amax(dim=1, keepdim=True) / 127
    return (values / scale).round() * scale


def rows(count):
    return torch.randn(count, IN, generator=torch.Generator().manual_seed(6))


@each_row("name", kernels())
@each_row("count", [1, 2, 5, 16, 95, 96, 130])
def test_a_product_is_that_of_the_dequantised_weights(name, count):
    kernel, dense, tolerance = kernels()[name]
    x = rows(count)
    expected = x @ dense.t() + (bias() if len(dense) == OUT else 0)
    error = (kernel(x) - expected).abs().max() / expected.abs().max()
    assert error < tolerance


@pytest.mark.parametrize("name", kernels())
def test_a_row_does_not_depend_on_how_many_rows_there_are(name):
    kernel, _, _ = kernels()[name]
    x = rows(130)
    alone = torch.cat([kernel(x[i : i + 1]) for i in range(8)])
    for count in (8, 32, 130):
        together = kernel(x[:count])[:8]
        if name == "int8":
            assert torch.equal(together, alone), "whole numbers do not round differently"
        else:
            torch.testing.assert_close(together, alone, rtol=2e-2, atol=3e-2 * float(alone.abs().mean()))


def test_an_enormous_row_changes_no_other_row():
    kernel = Int8Linear(weight(), None)
    x = rows(6)
    quiet = kernel(x)
    x[3] *= 1e6
    loud = kernel(x)
    others = [0, 1, 2, 4, 5]
    assert torch.equal(quiet[others], loud[others])


def test_the_control_one_scale_for_all_rows_is_noticed():
    """The same test on activations rounded with one scale must fail, or it proves nothing."""
    x = rows(6)

    def shared(values):
        scale = values.abs().max() / 127
        return (values / scale).round() * scale @ weight().t()

    quiet = shared(x)
    x[3] *= 1e6
    assert not torch.equal(quiet[0], shared(x)[0])


@with_int8
def test_a_second_digit_keeps_more_of_the_activations():
    kernel = Int8Linear(weight(), None)
    x = rows(4)
    scale = x.abs().amax(dim=1, keepdim=True) / 127
    exact = x @ rounded_to_eight_bits(weight()).t()
    one_digit = (x / scale).round() * scale @ rounded_to_eight_bits(weight()).t()
    assert (kernel(x) - exact).abs().max() < (one_digit - exact).abs().max() / 50


def test_rows_of_zeros_stay_zeros():
    kernel = Int8Linear(weight(), None)
    assert not kernel(torch.zeros(2, IN)).any()


def test_stacked_layers_are_their_parts_side_by_side():
    first, second = DenseLinear(weight(), bias()), Int8Linear(weight(), None)
    x = rows(3)
    assert torch.equal(Stacked([first, second])(x), torch.cat([first(x), second(x)], dim=1))
