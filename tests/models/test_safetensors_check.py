"""Files of a folder that contradict themselves or each other are refused: headers, entries, the index."""

import json

import pytest
from loading_kit import load, logits_of, refusal
from tiny_models import HIDDEN, INNER, hub_sizes, tiny_folder

from specchat.config import ModelSpec, PathSource
from specchat.models.hub.pair_check import check_pair


def header_of(path):
    data = (path / "model.safetensors").read_bytes()
    length = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def with_header(path, header, data):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    (path / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


NORM = "model.norm.weight"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"shape": [32]}, NORM),
        ({"shape": [2**62, 2**62, 2**62]}, NORM),
        ({"shape": [-64]}, NORM),
        ({"shape": 64}, NORM),
        ({"shape": [64.0]}, NORM),
        ({"dtype": "F99"}, NORM),
        ({"dtype": 3}, NORM),
        ({"data_offsets": [0, 2**62]}, NORM),
        ({"data_offsets": [256, 0]}, NORM),
        ({"data_offsets": "x"}, NORM),
    ],
)
def test_an_entry_that_does_not_add_up_is_refused(tmp_path, change, words):
    path = tiny_folder(tmp_path / "m")
    header, data = header_of(path)
    header[NORM] |= change
    assert words in refusal(with_header(path, header, data))
    assert words in check_pair([ModelSpec("m", (PathSource(path),))]).refusals[0]


def test_tensors_that_overlap_are_refused(tmp_path):
    path = tiny_folder(tmp_path / "m")
    header, data = header_of(path)
    first, second = sorted(header, key=lambda name: header[name]["data_offsets"])[:2]
    header[second] = {**header[first]}
    assert str(path) in refusal(with_header(path, header, data))


@pytest.mark.parametrize(
    "data", [b"", b"\x00" * 8, b"\xff" * 8, (50).to_bytes(8, "little") + b"{}", b"\x02" + bytes(7) + b"[]"]
)
def test_what_is_no_safetensors_file_is_refused(tmp_path, data):
    path = tiny_folder(tmp_path / "m")
    (path / "model.safetensors").write_bytes(data)
    assert "model.safetensors" in refusal(path)


@pytest.mark.parametrize(
    ("places", "words"),
    [
        ({}, "no weight_map"),
        ([], "no weight_map"),
        ({NORM: 3}, "not a file of this folder"),
        ({NORM: "../m/model.safetensors"}, "not a file of this folder"),
        ({NORM: "gone.safetensors"}, "which is not there"),
        ({NORM: "n" * 5000 + ".safetensors"}, "nnn…, which is not there"),
        ({NORM: "model.safetensors", "nowhere": "model.safetensors"}, "nowhere"),
    ],
)
def test_an_index_that_names_what_is_not_there_is_refused(tmp_path, places, words):
    path = tiny_folder(tmp_path / "m")
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    assert words in refusal(path)


def test_only_the_files_of_an_index_are_read(tmp_path):
    path = tiny_folder(tmp_path / "m")
    (path / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": dict.fromkeys(hub_sizes(), "model.safetensors")})
    )
    (path / "another.safetensors").write_bytes(b"of another model")
    assert logits_of(load(path)).isfinite().all()


def test_a_tensor_in_two_files_is_refused(tmp_path):
    path = tiny_folder(tmp_path / "m")
    (path / "twice.safetensors").write_bytes((path / "model.safetensors").read_bytes())
    assert "in another file too" in refusal(path)


def test_the_width_of_the_layers_is_the_configurations(tmp_path):
    other = {
        f"model.layers.{layer}.mlp.{name}_proj.weight": (128, HIDDEN) for layer in (0, 1) for name in ("gate", "up")
    }
    assert f"its configuration says {INNER} × {HIDDEN}" in refusal(tiny_folder(tmp_path / "m", sizes=other))
