"""Weights packed in C are, byte for byte, what unpacking, rounding and laying them out one after another comes to."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import packing_reference as reference
import pytest
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import quantize
from native_kit import have, needs_native
from rows import each_row
from test_gguf_reader import written

from specchat.errors import ModelError
from specchat.models.cpu_kernels.kernels import kernels_for
from specchat.models.cpu_kernels.packing import Packer, RowReader
from specchat.models.weights.gguf_source import GgufSource
from specchat.models.weights.weight_source import GROUP, AdjustedSource, FourBit, StoredRows, TensorSource

pytestmark = needs_native

PLAIN = [GGMLQuantizationType[name] for name in ("F32", "F16", "BF16")]
SMALL = [GGMLQuantizationType[name] for name in ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")]
LARGE = {"Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "Q3_K": (108,)}
"""Blocks of 256, and where in them a float16 factor stands. Nothing here writes them, so that their bytes are drawn."""
KINDS = [*PLAIN, *SMALL, *(GGMLQuantizationType[name] for name in LARGE)]


def drawn(kind, rows, length):
    """Rows of a kind, whatever they say: (rows, …) as a GGUF file has them."""
    random = np.random.default_rng(rows + length)
    if kind.name not in LARGE:
        return quantize(random.standard_normal((rows, length)).astype(np.float32), kind)
    block, size = GGML_QUANT_SIZES[kind]
    blocks = random.integers(0, 256, (rows, length // block, size), dtype=np.uint8)
    for at in LARGE[kind.name]:
        factors = random.standard_normal((rows, length // block)).astype(np.float16)
        blocks[..., at : at + 2] = factors.view(np.uint8).reshape(rows, length // block, 2)
    return blocks.reshape(rows, -1)


def file_with(tmp_path, kind, rows, length):
    """A source with one matrix, `embed`, and the same once more as `q` of a layer."""
    weight = (drawn(kind, rows, length), kind)
    return GgufSource(written(tmp_path, **{"token_embd.weight": weight, "blk.0.attn_q.weight": weight}))


def packed(source, name="embed", layer=None, precision="int4", processor="native", **how):
    return Packer(kernels_for(processor), source, precision).product(name, layer, **how)


def assert_same(product, expected):
    assert product.data.shape == expected.shape
    assert torch.equal(product.data, expected)


@each_row("processor", ["native", "haswell"])
@each_row("rows", [16, 37])
@each_row("kind", KINDS, ids=lambda kind: kind.name)
def test_every_kind_is_rounded_to_eight_bits(tmp_path, kind, rows, processor):
    if why := have(processor):
        pytest.skip(why)
    source = file_with(tmp_path, kind, rows, 512)
    product = packed(source, precision="int8", processor=processor)
    assert (product.out, product.inputs, product.bits, product.minima) == (rows, 512, 8, False)
    assert_same(product, reference.of_dense(source.dense("embed")))


@each_row("processor", ["native", "haswell"])
@each_row("rows", [16, 37])
@each_row("kind", KINDS, ids=lambda kind: kind.name)
def test_four_bits_of_the_file_stay_and_others_are_rounded_for_who_only_guesses(tmp_path, kind, rows, processor):
    if why := have(processor):
        pytest.skip(why)
    source = file_with(tmp_path, kind, rows, 512)
    own = source.four_bit("embed")
    writes, guesses = (packed(one, processor=processor) for one in (source, AdjustedSource(source, rounds=True)))
    assert (guesses.bits, guesses.minima) == (4, kind.name != "Q4_0")
    if own is None:
        assert_same(writes, reference.of_dense(source.dense("embed")))
        assert_same(guesses, reference.of_four_bits(FourBit.rounded(source.dense("embed"))))
    else:
        assert_same(writes, reference.of_four_bits(own))
        assert_same(guesses, reference.of_four_bits(own))


@each_row("length", [1, 40, 95])
@each_row("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_rows_that_end_within_a_group_are_filled_up_with_zeros(dtype, length):
    weight = torch.randn(19, length, generator=torch.Generator().manual_seed(length)).to(dtype)
    source = TensorSource({"model.embed_tokens.weight": weight})
    assert (source.stored("embed") is None) == (dtype == torch.float64)
    for each in (source, AdjustedSource(source, rounds=True)):
        assert_same(packed(each), reference.of_dense(weight.float()))


def test_groups_of_zeros_and_of_one_value_are_packed_as_they_are_rounded():
    weight = torch.zeros(16, 3 * GROUP)
    weight[:, GROUP : 2 * GROUP] = torch.arange(-8, 8)[:, None] / 3
    weight[:, -GROUP:] = 1e-9
    source = TensorSource({"model.embed_tokens.weight": weight})
    assert_same(packed(source), reference.of_dense(weight))
    assert_same(packed(AdjustedSource(source, rounds=True)), reference.of_four_bits(FourBit.rounded(weight)))


@pytest.mark.parametrize("kind", [GGMLQuantizationType[name] for name in ("Q4_0", "Q4_K", "Q6_K", "Q3_K")])
def test_rows_that_rotate_together_are_packed_side_by_side(tmp_path, kind):
    source = file_with(tmp_path, kind, 48, 256)
    in_the_files_order = packed(source, "q", 0)
    source.interleaved = False
    paired = AdjustedSource(source, head_dim=16)
    four = paired.four_bit("q", 0)
    expected = reference.of_dense(paired.dense("q", 0)) if four is None else reference.of_four_bits(four)
    assert_same(packed(paired, "q", 0), expected)
    assert not torch.equal(in_the_files_order.data, expected)


@pytest.mark.parametrize("kind", [GGMLQuantizationType.Q4_0, GGMLQuantizationType.Q3_K], ids=lambda kind: kind.name)
def test_a_large_weight_is_shared_out_over_threads_and_pages_are_given_back(tmp_path, kind):
    source = file_with(tmp_path, kind, 2 * 4096 + 21, 256)
    given_back = []
    source.let_go = lambda: given_back.append(1)
    with ThreadPoolExecutor(2) as pool:
        shared = packed(source, share_out=pool.map)
    assert len(given_back) == 3
    four = source.four_bit("embed")
    assert_same(shared, reference.of_dense(source.dense("embed")) if four is None else reference.of_four_bits(four))


def test_some_rows_are_handed_on_without_a_copy():
    stored = StoredRows.of_tensor(torch.arange(12.0).view(6, 2))
    turned = stored.permuted(torch.tensor([5, 4, 3, 2, 1, 0]))
    for rows in (stored.some(slice(2, 4)), turned.some(slice(2, 4))):
        assert rows.rows == 2
        assert np.shares_memory(rows.data, stored.data)
    assert turned.some(slice(2, 4)).order.tolist() == [3, 2]


def test_what_a_product_holds_is_what_it_was_given():
    weight = torch.randn(4096 + 40, 33, generator=torch.Generator().manual_seed(1))
    product = packed(TensorSource({"model.embed_tokens.weight": weight}))
    assert (reference.values_of(product) - weight).abs().max() < weight.abs().max() / 127
    four = FourBit.rounded(weight[:40, :32])
    exact = four.numbers.float() * four.scale + four.minimum
    rounded = packed(AdjustedSource(TensorSource({"model.embed_tokens.weight": weight[:40, :32]}), rounds=True))
    torch.testing.assert_close(reference.values_of(rounded), exact)


@each_row("kind", KINDS, ids=lambda kind: kind.name)
def test_rows_are_read_in_any_order_as_the_file_has_them(tmp_path, kind):
    source = file_with(tmp_path, kind, 37, 512)
    stored = source.stored("embed")
    if not kernels_for().packs(stored.kind):
        pytest.skip("read by gguf itself")
    reader = RowReader(kernels_for(), stored)
    which = [5, 0, 36, 5]
    torch.testing.assert_close(reader.rows(which), source.dense("embed")[which], rtol=1e-6, atol=0)
    assert reader.rows([]).shape == (0, 512)
    with pytest.raises(ModelError, match="row 37 of 37"):
        reader.rows([37])


DAMAGE = {"F32": (4, np.float32, 5), "BF16": (2, np.uint16, 9), "Q4_0": (2, np.float16, 0), "Q8_0": (2, np.float16, 0)}
"""The size and kind of a number that is damaged, and which of a row it is. A block of Q8_0 has 34 bytes."""


@each_row("precision", ["int4", "int8"])
@each_row("rounds", [False, True])
@each_row("kind", [*DAMAGE, "Q4_K"])
def test_a_number_that_is_not_finite_is_refused_by_name(tmp_path, kind, precision, rounds):
    format = GGMLQuantizationType[kind]
    rows = np.ascontiguousarray(drawn(format, 20, 512)).view(np.uint8).reshape(20, -1)
    size, number, at = DAMAGE.get(kind, (2, np.float16, 1))
    strange = 0x7F80 if number is np.uint16 else np.nan
    rows[17, at * size : (at + 1) * size] = np.array([strange], number).view(np.uint8)
    file = written(tmp_path, **{"token_embd.weight": (rows, format)})
    source = AdjustedSource(GgufSource(file), rounds=True) if rounds else GgufSource(file)
    with pytest.raises(ModelError, match=r"token_embd\.weight.* holds numbers that are not finite"):
        packed(source, precision=precision)
    with pytest.raises(ModelError, match=r"token_embd\.weight.* holds numbers that are not finite"):
        Packer(kernels_for(), source, precision).check("embed")
