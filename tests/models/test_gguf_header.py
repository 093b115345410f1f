"""A GGUF header is believed only as far as the file bears it out; what is wrong is one line with the file's name."""

import os
import struct

import pytest
from gguf import GGML_QUANT_SIZES
from loading_kit import load
from rows import each_row
from tiny_models import TOKENS, tiny_gguf

from specchat.config.values import gguf_parts
from specchat.core.tree import TokenTree
from specchat.errors import WeightsError
from specchat.models.weights import gguf_header
from specchat.models.weights.gguf_header import FORMATS, map_parts, read_header
from specchat.models.weights.gguf_source import GgufReader
from specchat.models.weights.model_files import describe_model, token_table
from specchat.models.weights.transformers_cache import converted_folder

HUGE = 2**64 - 1
U32, I32, F32, BOOL, STRING, ARRAY, U64 = 4, 5, 6, 7, 8, 9, 10


def text(value):
    return struct.pack("<Q", len(value)) + value.encode()


def entry(key, kind, value):
    return text(key) + struct.pack("<I", kind) + value


def tensor(name="t", sizes=(32,), kind=0, offset=0):
    return text(name) + struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, kind, offset)


def written(path, entries=(), tensors=(), counts=None, data=bytes(320)):
    path.write_bytes(
        b"GGUF"
        + struct.pack("<IQQ", 3, *(counts or (len(tensors), len(entries))))
        + b"".join((*entries, *tensors))
        + data
    )
    return path


def alignment(kind, layout, value):
    return [entry("general.alignment", kind, struct.pack(layout, value))]


@pytest.mark.parametrize(
    ("entries", "counts", "what"),
    [
        ((), (0, 2**21), "entries"),
        ((), (2**21, 0), "tensors"),
        ((entry("k", ARRAY, struct.pack("<IQ", STRING, 2**24)),), None, "texts"),
    ],
)
def test_a_sparse_file_that_has_room_for_anything_is_refused_at_once(tmp_path, entries, counts, what):
    file = written(tmp_path / "m.gguf", entries, counts=counts)
    with file.open("rb+") as opened:
        opened.truncate(2**40)
    with pytest.raises(WeightsError, match=f"{what}, and no model has more"):
        read_header(file)


def listed(key, *values):
    texts = b"".join(struct.pack("<Q", len(value)) + value for value in values)
    return entry(key, ARRAY, struct.pack("<IQ", STRING, len(values)) + texts)


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        (listed("tokenizer.ggml.tokens", b"a", b"b", b"c\xff"), "'tokenizer.ggml.tokens', entry 2, is not UTF-8"),
        (entry("general.name", STRING, struct.pack("<Q", 2) + b"c\xff"), "'general.name' is not UTF-8"),
        (struct.pack("<Q", 2) + b"k\xff" + struct.pack("<IB", BOOL, 1), "a name is not UTF-8"),
    ],
    ids=["token", "value", "key"],
)
def test_text_that_is_not_utf8_is_refused_by_its_place_where_a_tokenizer_is_made(tmp_path, broken, says):
    file = written(tmp_path / "m.gguf", [broken])
    assert read_header(file).metadata
    for read in (lambda: read_header(file, lists=True), lambda: converted_folder(file), lambda: token_table(file)):
        with pytest.raises(WeightsError, match=f"^{file} is not a GGUF file that can be read: {says}: .* 0xff$"):
            read()


DAMAGE = {
    "more tensors than bytes": ({"counts": (HUGE, 0)}, "tensors"),
    "more entries than bytes": ({"counts": (0, HUGE)}, "entries"),
    "an alignment of 0": ({"entries": alignment(U32, "<I", 0)}, "alignment = 0"),
    "a negative alignment": ({"entries": alignment(I32, "<i", -32)}, "alignment = -32"),
    "an alignment that is a text": ({"entries": [entry("general.alignment", STRING, text("x"))]}, "alignment = 'x'"),
    "an alignment that is a fraction": ({"entries": alignment(F32, "<f", 0.5)}, "alignment = 0.5"),
    "an alignment that is true": ({"entries": alignment(BOOL, "<?", True)}, "alignment = True"),
    "an alignment that is a list": (
        {"entries": [entry("general.alignment", ARRAY, struct.pack("<IQ", U32, 0))]},
        "alignment = None",
    ),
    "a text longer than the file": ({"entries": [entry("k", STRING, struct.pack("<Q", HUGE))]}, "text"),
    "a list longer than the file": ({"entries": [entry("k", ARRAY, struct.pack("<IQ", U64, 2**61))]}, "numbers"),
    "texts without end": ({"entries": [entry("k", ARRAY, struct.pack("<IQQ", STRING, 2, HUGE))]}, "text"),
    "a list of lists": ({"entries": [entry("k", ARRAY, struct.pack("<IQ", ARRAY, 1))]}, "list of the unknown kind 9"),
    "a value of no kind": ({"entries": [entry("k", 99, b"")]}, "unknown kind 99"),
    "a tensor of no dimension": ({"tensors": [tensor(sizes=())]}, "0 dimensions"),
    "a tensor of many dimensions": ({"tensors": [tensor(sizes=(1,) * 5)]}, "5 dimensions"),
    "a tensor without rows": ({"tensors": [tensor(sizes=(32, 0))]}, "sizes 0 × 32"),
    "a tensor larger than any": ({"tensors": [tensor(sizes=(2**63, 2**63))]}, "sizes"),
    "a tensor of no format": ({"tensors": [tensor(kind=77)]}, "unknown format 77"),
    "rows of broken blocks": ({"tensors": [tensor(sizes=(33,), kind=8)]}, "whole blocks of 32"),
    "a tensor past the end": ({"tensors": [tensor(sizes=(100,))]}, "past the end"),
    "a tensor far away": ({"tensors": [tensor(offset=2**63)]}, "past the end"),
    "a tensor between the blocks": ({"tensors": [tensor(sizes=(8,), offset=8)]}, "not a multiple of 32"),
    "two tensors of one name": ({"tensors": [tensor(), tensor()]}, "one name"),
    "two tensors in one place": (
        {"tensors": [tensor(sizes=(64,)), tensor("u", (8,), offset=32)]},
        "'t' and 'u' overlap",
    ),
    "an architecture of two lines": (
        {"entries": [entry("general.architecture", STRING, text("lla\nma"))]},
        r"'lla\nma' is not a valid name",
    ),
    **{
        f"{key} as a list": (
            {
                "entries": [
                    entry("a." + key, ARRAY, struct.pack("<IQII", U32, 2, 8, 9)),
                    entry("general.architecture", STRING, text("a")),
                ]
            },
            f"a.{key} = a list of 2 numbers, and one value is read there",
        )
        for key in ("rope.freq_base", "block_count", "rope.scaling.factor")
    },
    "a scaling of texts": (
        {"entries": [entry("general.architecture", STRING, text("a")), listed("a.rope.scaling.type", b"yarn")]},
        "a.rope.scaling.type = a list of 1 texts",
    ),
    "a name of many lines": ({"tensors": [tensor(name="\n" * 500, kind=77)]}, r"tensor '\n\n\n"),
    "a tensor without a name": ({"tensors": [tensor(name="")]}, "a name has 0"),
}


@each_row("lists", [False, True])
@each_row("damage", DAMAGE)
def test_a_damaged_header_is_one_line_that_names_the_file(tmp_path, damage, lists):
    parts, words = DAMAGE[damage]
    with pytest.raises(WeightsError, match=r"x\.gguf") as refused:
        read_header(written(tmp_path / "x.gguf", **parts), lists)
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def test_the_same_header_without_damage_is_read(tmp_path):
    found = read_header(written(tmp_path / "x.gguf", alignment(U32, "<I", 64), [tensor(), tensor("u", offset=128)]))
    assert [t.name for t in found.tensors] == ["t", "u"]
    assert found.parts[0].start % 64 == 0


@pytest.mark.parametrize("key", ["attention.head_count", "attention.head_count_kv", "feed_forward_length"])
def test_a_number_that_a_header_may_give_for_each_layer_may_be_a_list(tmp_path, key):
    path = tiny_gguf(tmp_path / "m.gguf", {key: [4, 4]})
    assert read_header(path).numbers[f"llama.{key}"] == 2


@pytest.mark.parametrize("lists", [False, True])
def test_a_file_may_end_anywhere(tmp_path, lists):
    data = tiny_gguf(tmp_path / "whole.gguf").read_bytes()
    path = tmp_path / "x.gguf"
    for end in (0, 1, 3, 8, 23, 24, 40, *range(100, len(data), 997)):
        path.write_bytes(data[:end])
        with pytest.raises(WeightsError, match=r"x\.gguf"):
            read_header(path, lists)


def test_the_formats_are_those_of_the_format_s_own_package():
    theirs = {int(kind): (kind.name, *sizes) for kind, sizes in GGML_QUANT_SIZES.items()}
    ours = {kind: (one.name, one.block, one.block_bytes) for kind, one in FORMATS.items()}
    assert {kind: ours[kind] for kind in ours if kind in theirs} == {
        kind: theirs[kind] for kind in theirs if kind in ours
    }
    assert len(ours.keys() & theirs.keys()) >= 30


def test_a_load_parses_the_header_once_whether_it_converts_the_file_or_not(tmp_path, monkeypatch):
    file, parsed, parse = tiny_gguf(tmp_path / "m.gguf"), [], gguf_header.HeaderReader
    monkeypatch.setattr(gguf_header, "HeaderReader", lambda data: parsed.append(1) or parse(data))
    load(file)
    assert len(parsed) == 1
    load(file)
    assert len(parsed) == 1
    os.utime(file, ns=(0, 0))
    load(file)
    assert len(parsed) == 2


def test_a_file_that_changes_after_its_header_was_read_is_refused(tmp_path):
    file = tiny_gguf(tmp_path / "m.gguf")
    header = read_header(file)
    with file.open("ab") as opened:
        opened.write(b"more")
    with pytest.raises(WeightsError, match=r"m\.gguf is not a GGUF file that can be read: it is being changed"):
        map_parts(header)
    assert map_parts(read_header(file))[0][:4] == b"GGUF"


def split(folder, name="m.gguf", **changes):
    """The files of a tiny model that was split, the first of them first."""
    first = tiny_gguf(folder / name, tensors_each=4, **changes)
    return [folder / part for part in gguf_parts(first.name)]


def test_a_split_model_is_the_model_of_its_parts(tmp_path):
    whole, parts = tiny_gguf(tmp_path / "whole.gguf"), split(tmp_path)
    assert len(parts) > 2
    one, several = GgufReader(whole), GgufReader(parts[0])
    names = [tensor.name for tensor in read_header(whole).tensors]
    assert sorted(names) == sorted(tensor.name for tensor in read_header(parts[0]).tensors)
    for name in names:
        assert several.tensors[name].dense().equal(one.tensors[name].dense())
    assert describe_model(parts[0]).parameters == describe_model(whole).parameters
    logits = []
    for path in (whole, parts[0]):
        model = load(path).model
        model.prefill([1, 2, 3])
        logits.append(model.read(TokenTree(1, len(TOKENS)).freeze()).logits)
    assert logits[0].equal(logits[1])


def swap(parts):
    held = [part.read_bytes() for part in parts[1:3]]
    for part, data in zip(parts[1:3], reversed(held), strict=True):
        part.write_bytes(data)


SPLIT_DAMAGE = {
    "a later part is named": (lambda parts: parts.reverse(), "counted from 0; name the first"),
    "one is missing": (lambda parts: parts[1].unlink(), "m-00002-of-"),
    "one is cut off": (lambda parts: os.truncate(parts[-1], parts[-1].stat().st_size // 2), "reaches past the end"),
    "two are exchanged": (swap, "is not its part 2 of"),
    "the first has a name of its own": (
        lambda parts: parts.insert(0, parts[0].rename(parts[0].with_name("x.gguf"))),
        "x-00001-of-",
    ),
    "one is of another model": (
        lambda parts: split(parts[0].parent / "b", sizes={"output_norm.weight": None})[1].replace(parts[1]),
        "of its parts have one name",
    ),
}


@pytest.mark.parametrize("damage", SPLIT_DAMAGE)
def test_parts_that_do_not_make_a_model_are_one_line(tmp_path, damage):
    (tmp_path / "b").mkdir()
    parts, (change, words) = split(tmp_path), SPLIT_DAMAGE[damage]
    change(parts)
    with pytest.raises(WeightsError) as refused:
        read_header(parts[0])
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)
