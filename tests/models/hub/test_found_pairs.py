"""Which pairs are proposed: by tokens, then by size. What cannot run is named with the reason."""

from __future__ import annotations

import numpy as np
import pytest
from gguf import GGUFWriter
from models_without_weights import TOKENS, folder, gguf
from tiny_models import tiny_gguf

from specchat.config import load_catalog
from specchat.models.hub import found_pairs
from specchat.models.hub.found_models import FoundModel
from specchat.models.hub.found_pairs import find_pairs


def model(path, blocks=1, tokens=TOKENS, architecture="llama"):
    """A GGUF file with so many times 1,024 parameters, and some more."""
    writer = GGUFWriter(path, architecture)
    writer.add_context_length(2048)
    writer.add_token_list(tokens)
    writer.add_tensor("token_embd.weight", np.zeros((4, 32), np.float32))
    for block in range(blocks):
        writer.add_tensor(f"blk.{block}.attn_q.weight", np.zeros((32, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return FoundModel(path.stem, path, "here")


def proposed(*models):
    found = find_pairs(load_catalog(), models)
    return {pair.target.name: pair.draft.name if pair.draft else None for pair in found.pairs}


def test_the_smallest_model_with_the_same_tokens_drafts_for_larger_ones(tmp_path):
    small, middle, large = (model(tmp_path / f"{name}.gguf", blocks) for name, blocks in (("s", 1), ("m", 4), ("l", 9)))
    assert proposed(large, small, middle) == {"l": "s", "m": "s", "s": None}


def test_a_model_of_nearly_the_same_size_drafts_for_none(tmp_path):
    assert proposed(model(tmp_path / "a.gguf", 3), model(tmp_path / "b.gguf", 4)) == {"a": None, "b": None}


def test_a_draft_model_with_other_tokens_or_another_order_of_them_is_translated_and_must_be_much_smaller(tmp_path):
    one = model(tmp_path / "a.gguf", 9)
    other = model(tmp_path / "b.gguf", 1, [*TOKENS[:-1], "d"])
    turned = model(tmp_path / "c.gguf", 1, [TOKENS[0], *reversed(TOKENS[1:])])
    found = find_pairs(load_catalog(), [one, other, turned]).pairs
    assert [(pair.target.name, pair.draft and pair.draft.name, pair.translated) for pair in found] == [
        ("a", "b", True),
        ("b", None, False),
        ("c", None, False),
    ]


def test_a_draft_model_with_the_same_tokens_goes_before_a_smaller_one_with_others(tmp_path):
    others = [*TOKENS[:-1], "d"]
    large, middle, small = (
        model(tmp_path / "l.gguf", 12),
        model(tmp_path / "m.gguf", 4),
        model(tmp_path / "s.gguf", 1, others),
    )
    lonely = model(tmp_path / "x.gguf", 20, [*TOKENS[:-1], "e"])
    found = find_pairs(load_catalog(), [lonely, small, middle, large]).pairs
    drafted = [(pair.target.name, pair.draft.name, pair.translated) for pair in found if pair.draft]
    assert drafted == [("l", "m", False), ("x", "s", True)]


def test_a_gguf_file_and_a_folder_with_the_same_tokens_make_a_pair(tmp_path):
    target = model(tmp_path / "a.gguf", 9)
    assert proposed(target, FoundModel("f", folder(tmp_path / "f"), "here"))["a"] == "f"


def test_a_file_with_several_names_is_one_model(tmp_path):
    one = model(tmp_path / "a.gguf")
    (tmp_path / "b.gguf").symlink_to(tmp_path / "a.gguf")
    assert proposed(one, FoundModel("b", tmp_path / "b.gguf", "here")) == {"a": None}


def test_what_cannot_run_is_named_with_the_reason(tmp_path):
    (tmp_path / "no.gguf").write_bytes(b"nothing")
    broken = FoundModel("no", tmp_path / "no.gguf", "here")
    split = FoundModel("part", tiny_gguf(tmp_path / "x.gguf", tensors_each=9), "here")
    (tmp_path / split.path.name.replace("00001-of", "00002-of")).unlink()
    vision = FoundModel("v", gguf(tmp_path / "mmproj-x.gguf"), "here")
    embeds, recurrent = (model(tmp_path / f"{kind}.gguf", architecture=kind) for kind in ("nomic-bert", "mamba"))
    found = find_pairs(load_catalog(), [broken, split, vision, embeds, recurrent, model(tmp_path / "good.gguf")])
    assert [pair.name for pair in found.pairs] == ["good"]
    reasons = {refused.name: why for refused, why in found.refused}
    words = {
        "no": "is not a GGUF file",
        "part": "x-00002-of-",
        "nomic-bert": "writes no text",
        "mamba": "state",
    }
    assert reasons.keys() == words.keys()
    for name, word in words.items():
        assert word in reasons[name]


@pytest.mark.parametrize(("free", "fits"), [(0, False), (10**12, True), (None, None)])
def test_whether_a_pair_fits_in_memory_is_said_where_it_is_known(tmp_path, monkeypatch, free, fits):
    monkeypatch.setattr(found_pairs, "free_bytes", lambda: free)
    monkeypatch.setattr(found_pairs, "has_graphics_card", lambda: False)
    (pair,) = find_pairs(load_catalog(), [model(tmp_path / "a.gguf")]).pairs
    assert pair.fits is fits


def test_names_that_are_taken_get_a_number(tmp_path):
    (tmp_path / "x").mkdir()
    smol = FoundModel("Smol:latest", model(tmp_path / "a.gguf").path, "Ollama")
    again = FoundModel("owner/smol", model(tmp_path / "x" / "a.gguf").path, "hub cache")
    assert {pair.name for pair in find_pairs(load_catalog(), [smol, again]).pairs} == {"smol-2", "smol-3"}
