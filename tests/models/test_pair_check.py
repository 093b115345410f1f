"""What can be said of a pair before it is loaded: sizes, shapes, tokens, memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFWriter
from models_without_weights import TOKENS, folder, gguf, tokenizer
from safetensors.numpy import save_file

from specchat.config import ModelSpec, PathSource, load_catalog
from specchat.config.values import ScriptedSource
from specchat.errors import WeightsError
from specchat.models.hub.model_state import locate
from specchat.models.hub.pair_check import check_pair
from specchat.models.weights.model_files import describe_model, differing_tokens, needed_bytes, token_table

ROOT = Path(__file__).parents[2]
OTHERS = ["<s>", "a", "c", "b", "d"]


def spec(name: str, path: Path) -> ModelSpec:
    return ModelSpec(name, (PathSource(path),))


def test_a_gguf_file_says_what_it_is(tmp_path):
    seen = describe_model(gguf(tmp_path / "x.gguf"))
    assert (seen.architecture, seen.parameters, seen.context_tokens) == ("llama", 4 * 32 + 32 * 32, 2048)
    assert (seen.quantised, seen.own, seen.refusal, seen.remark) == (True, True, "", "")


def test_a_folder_says_what_it_is(tmp_path):
    seen = describe_model(folder(tmp_path / "m"))
    assert (seen.architecture, seen.parameters, seen.context_tokens) == ("llama", 1000, 4096)
    assert (seen.quantised, seen.own, seen.refusal) == (False, True, "")


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"model_type": "mamba"}, "state cannot go back"),
        ({"layer_types": ["full_attention", "linear_attention"]}, "layers of kind linear_attention"),
        ({"model_type": "phi3", "sliding_window": 512}, "forgets what lies 512 tokens back"),
        ({"architectures": ["BertForMaskedLM"]}, "writes no text: it is a BertForMaskedLM"),
        ({"model_type": ""}, "of what architecture"),
    ],
)
def test_shapes_that_cannot_work_are_refused_with_the_reason(tmp_path, config, words):
    assert words in describe_model(folder(tmp_path / "m", **config)).refusal


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "phi3", "sliding_window": 512, "use_sliding_window": False},
        {"model_type": "phi3", "sliding_window": 4096},
        {"model_type": "gemma3_text", "sliding_window": 512},
        {},
    ],
)
def test_windows_that_do_not_hurt_are_none_to_complain_of(tmp_path, config):
    assert describe_model(folder(tmp_path / "m", **config)).refusal == ""


def test_a_gguf_file_without_layers_or_with_state_is_refused(tmp_path):
    assert "not a language model" in describe_model(gguf(tmp_path / "a.gguf", layers=False)).refusal
    assert "state cannot go back" in describe_model(gguf(tmp_path / "b.gguf", architecture="mamba")).refusal
    hybrid = describe_model(gguf(tmp_path / "c.gguf", architecture="qwen35")).refusal
    assert "architecture qwen35, whose recurrent layers are read from safetensors alone" in hybrid


def test_an_adapter_is_refused_also_where_it_lies_beside_a_model(tmp_path):
    factors = np.zeros((4, 32), np.float32)
    writer = GGUFWriter(tmp_path / "a.gguf", "llama")
    writer.add_tensor("blk.0.attn_q.weight.lora_a", factors)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    beside = folder(tmp_path / "m")
    name = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
    save_file({name: factors}, beside / "adapter_model.safetensors")
    for path in (tmp_path / "a.gguf", beside):
        assert describe_model(path).refusal.startswith("holds a LoRA adapter, and none is applied")
    (beside / "adapter_config.json").write_text("{}")
    (beside / "config.json").unlink()
    with pytest.raises(WeightsError, match=r"no config\.json: it holds an adapter, which has to be merged"):
        locate(spec("m", beside))


def test_an_architecture_that_only_transformers_runs_is_remarked(tmp_path):
    assert "slower" in describe_model(gguf(tmp_path / "a.gguf", architecture="gemma2")).remark


def test_what_cannot_be_read_is_told_with_its_name(tmp_path):
    (tmp_path / "x.gguf").write_bytes(b"not at all")
    with pytest.raises(WeightsError, match=r"x\.gguf"):
        describe_model(tmp_path / "x.gguf")
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(WeightsError, match=r"config\.json"):
        describe_model(tmp_path)


def test_token_tables_are_compared_across_formats(tmp_path):
    one, same = gguf(tmp_path / "x.gguf"), folder(tmp_path / "same")
    other = folder(tmp_path / "other", OTHERS)
    assert token_table(one) == token_table(same) == {token: number for number, token in enumerate(TOKENS)}
    assert differing_tokens(one, same) == (0, "")
    assert differing_tokens(one, other) == (3, "b")


def test_a_table_of_pairs_is_read_too(tmp_path):
    place = folder(tmp_path / "m")
    said = tokenizer(TOKENS) | {"model": {"vocab": [[token, -1.0] for token in TOKENS]}}
    (place / "tokenizer.json").write_text(json.dumps(said))
    assert token_table(place)["c"] == 3


def test_a_changed_file_is_read_again(tmp_path):
    place = folder(tmp_path / "m")
    assert len(token_table(place)) == 4
    (place / "tokenizer.json").write_text(json.dumps(tokenizer(OTHERS)))
    assert len(token_table(place)) == 5


def test_a_pair_that_fits_has_nothing_against_it_and_its_memory_is_estimated(tmp_path):
    models = [spec("t", gguf(tmp_path / "t.gguf")), spec("d", gguf(tmp_path / "d.gguf"))]
    fit = check_pair(models)
    assert (fit.refusals, fit.remarks) == ((), ())
    assert fit.needed_bytes == 2 * needed_bytes(4 * 32 + 32 * 32, "int4", four_bit=0)
    assert check_pair(models, "float32").needed_bytes == 2 * needed_bytes(4 * 32 + 32 * 32, "float32")


def test_what_a_file_holds_in_more_than_four_bits_takes_more_memory():
    assert needed_bytes(10**9, "int4") == needed_bytes(10**9, "int4", four_bit=10**9)
    assert needed_bytes(10**9, "int4", four_bit=0) == needed_bytes(10**9, "int8")
    assert needed_bytes(10**9, "float32", four_bit=0) == needed_bytes(10**9, "float32")


def test_a_draft_model_with_other_tokens_is_refused_by_name_number_and_example(tmp_path):
    fit = check_pair([spec("t", gguf(tmp_path / "t.gguf")), spec("d", gguf(tmp_path / "d.gguf", OTHERS))])
    assert fit.refusals == ("d cannot draft for t: 3 tokens of their tables differ, such as 'b'",)


def test_where_the_drafter_translates_other_tokens_are_a_remark(tmp_path):
    models = [spec("t", gguf(tmp_path / "t.gguf")), spec("d", gguf(tmp_path / "d.gguf", OTHERS))]
    fit = check_pair(models, alike=())
    assert (fit.trouble, fit.refusals, fit.other_tokens) == ("", (), ("d",))
    assert fit.remarks == ("d drafts for t through 'cross_vocabulary': 3 tokens of their tables differ, such as 'b'",)
    assert not check_pair([models[0], models[0]], alike=()).other_tokens


def test_each_of_several_draft_models_is_compared_with_the_target(tmp_path):
    models = [spec(name, gguf(tmp_path / f"{name}.gguf")) for name in ("t", "a")]
    models += [spec(name, gguf(tmp_path / f"{name}.gguf", OTHERS)) for name in ("b", "c")]
    fit = check_pair(models, alike=("a", "b"))
    assert fit.refusals == ("b cannot draft for t: 3 tokens of their tables differ, such as 'b'",)
    assert fit.remarks[0].startswith("c drafts for t through 'cross_vocabulary'")
    assert fit.other_tokens == ("b", "c")
    assert fit.needed_bytes == sum(check_pair([model]).needed_bytes for model in models)


def test_a_model_without_weights_drafts_for_no_other(tmp_path):
    scripted = ModelSpec("s", (ScriptedSource(),))
    assert check_pair([scripted, scripted]).refusals == ()
    assert "different tokens" in check_pair([spec("t", gguf(tmp_path / "t.gguf")), scripted]).refusals[0]


def test_of_what_is_not_here_only_sizes_are_known():
    catalog = load_catalog()
    fit = check_pair(catalog.models_of(catalog.pair("qwen-coder")))
    assert fit.refusals == ()
    assert fit.needed_bytes == sum(needed_bytes(n, "int4") for n in (1_543_714_304, 494_032_768))
    assert check_pair(catalog.models_of(catalog.pair("qwen3"))).needed_bytes is None


def test_judging_needs_no_torch():
    script = (
        "import sys, specchat.models.hub.pair_check, specchat.models.hub.add_pair; "
        "print({'torch', 'transformers'} & set(sys.modules))"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    assert subprocess.check_output([sys.executable, "-c", script], env=environment, text=True).strip() == "set()"
