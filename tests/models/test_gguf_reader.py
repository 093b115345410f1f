"""GGUF files are read as they are: the header, dense values, and the file's own 4-bit numbers."""

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import dequantize, quantize
from torch.utils._python_dispatch import TorchDispatchMode

from specchat.errors import WeightsError
from specchat.models.weights.gguf_source import GgufReader
from specchat.models.weights.weight_source import GROUP

KINDS = [GGMLQuantizationType.Q4_0, GGMLQuantizationType.Q4_1]


@pytest.fixture
def weights():
    return np.random.default_rng(0).standard_normal((6, 512)).astype(np.float32)


def written(tmp_path, **tensors):
    """A GGUF file with these tensors (name → (array, kind or None)) and some metadata of every sort."""
    path = tmp_path / "x.gguf"
    writer = GGUFWriter(path, "llama")
    writer.add_string("test.text", "héllo")
    writer.add_array("test.words", ["a", "bb", "ccc"])
    writer.add_array("test.numbers", [1, 2, 3])
    writer.add_float32("test.number", 0.5)
    for name, (array, kind) in tensors.items():
        writer.add_tensor(name, array, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_the_header_and_plain_tensors_are_read(tmp_path, weights):
    reader = GgufReader(written(tmp_path, a=(weights, None), b=(weights[0], None)))
    assert reader.metadata["general.architecture"] == "llama"
    assert reader.metadata["test.text"] == "héllo"
    assert reader.metadata["test.number"] == 0.5
    assert torch.equal(reader.tensors["a"].dense(), torch.from_numpy(weights))
    assert torch.equal(reader.tensors["b"].dense(), torch.from_numpy(weights[0]))
    assert "a" in reader.tensors
    assert "c" not in reader.tensors


@pytest.mark.parametrize("kind", KINDS)
def test_four_bit_numbers_are_the_files_own(tmp_path, weights, kind):
    packed = quantize(weights, kind)
    stored = GgufReader(written(tmp_path, a=(packed, kind))).tensors["a"]
    expected = torch.from_numpy(dequantize(packed, kind))
    assert torch.equal(stored.dense(), expected)
    assert_groups_give(stored.groups(), expected)


def test_blocks_of_256_are_unpacked_with_their_six_bit_scales(tmp_path):
    random = np.random.default_rng(1)
    blocks = random.integers(0, 256, (4, 2, 144), dtype=np.uint8)
    blocks[..., :4] = np.array([0.03, 0.02], np.float16).view(np.uint8)  # factors that are finite numbers
    packed = blocks.reshape(4, 288)
    stored = GgufReader(written(tmp_path, a=(packed, GGMLQuantizationType.Q4_K))).tensors["a"]
    assert_groups_give(stored.groups(), torch.from_numpy(dequantize(packed, GGMLQuantizationType.Q4_K)))


def random_q6_k(rows, length):
    random = np.random.default_rng(1)
    blocks = random.integers(0, 256, (rows, length // 256, 210), dtype=np.uint8)
    blocks[..., 208:] = random.standard_normal((rows, length // 256, 1)).astype(np.float16).view(np.uint8)
    return blocks.reshape(rows, -1)


@pytest.mark.parametrize("rows", [3, 4000])
def test_weights_of_six_bits_are_those_of_gguf_to_the_bit_however_many_are_unpacked(tmp_path, rows):
    packed, kind = random_q6_k(rows, 1024), GGMLQuantizationType.Q6_K
    stored = GgufReader(written(tmp_path, a=(packed, kind))).tensors["a"]
    assert torch.equal(stored.dense(), torch.from_numpy(dequantize(packed, kind)))


class _Operations(TorchDispatchMode):
    """Counts what torch computes."""

    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += 1
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("rows", [3, 30000])
def test_a_table_is_unpacked_without_torchs_threads_which_would_wait_for_each_other(tmp_path, rows):
    blocks = np.zeros((rows, 288), np.uint8)
    stored = GgufReader(written(tmp_path, a=(blocks, GGMLQuantizationType.Q4_K))).tensors["a"]
    with _Operations() as operations:
        stored.dense()
    assert operations.count <= 3, "twenty for every megabyte cost twice the processor time"


def assert_groups_give(groups, expected):
    rows, length = expected.shape
    numbers = groups.numbers.float().view(rows, length // GROUP, GROUP)
    assert int(groups.numbers.max()) <= 15
    values = numbers * groups.scale[..., None] + groups.minimum[..., None]
    torch.testing.assert_close(values.view(rows, length), expected, rtol=1e-6, atol=1e-6)


def test_other_formats_have_no_four_bit_numbers(tmp_path, weights):
    kind = GGMLQuantizationType.Q8_0
    reader = GgufReader(written(tmp_path, a=(quantize(weights, kind), kind)))
    assert reader.tensors["a"].groups() is None


def test_single_rows_are_the_rows_of_the_whole(tmp_path, weights):
    kind = GGMLQuantizationType.Q8_0
    stored = GgufReader(written(tmp_path, a=(quantize(weights, kind), kind))).tensors["a"]
    assert torch.equal(stored.rows([4, 1, 4]), stored.dense()[[4, 1, 4]])


@pytest.mark.parametrize("cut", [3, 20, 200, -100])
def test_a_file_that_ends_too_soon_is_refused_in_one_line(tmp_path, weights, cut):
    path = written(tmp_path, a=(weights, None))
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(WeightsError, match=r"x\.gguf") as refused:
        GgufReader(path)
    assert "\n" not in str(refused.value)


def test_something_else_is_refused(tmp_path):
    path = tmp_path / "x.gguf"
    path.write_bytes(b"PK\x03\x04" * 100)
    with pytest.raises(WeightsError, match="not a GGUF file"):
        GgufReader(path)
