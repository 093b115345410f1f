"""The check of a GPU, run whole at a small size on a processor, where the packages of the app are missing."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from specchat.errors import CombinationError, UsageError
from specchat.models.weights.gguf_header import Kind
from specchat.models.weights.grouped_codes import LAYOUTS
from specchat.settings import Settings
from tests.preloading import with_code_before
from tools.gpu import bandwidth, products, run_parts
from tools.gpu.random_model import large
from tools.gpu.results import Done, Goal, Outcome, Results, section
from tools.gpu.rounds import wide_trees
from tools.gpu.run_parts import PARTS, check
from tools.gpu.setup import Setup
from tools.gpu.text import open_small, refuse_models_as_drafters, widened_pair
from tools.gpu.widened import Sizes

ROOT = Path(__file__).parents[2]
ABSENT = ("typer", "textual", "rich", "msgspec", "platformdirs", "tomlkit", "gguf")
BARE = f"""
import sys
for name in [name for name in sys.modules if name.split(".")[0] in ("specchat", *{ABSENT!r})]:
    del sys.modules[name]
sys.modules.update(dict.fromkeys({ABSENT!r}))
"""
"""Code after which they are missing, in a process that has imported them."""

WORDS = "the of is in and to for what how with that this you it on as are an be or by"
TINY = Setup(torch.device("cpu"), "float32", tiny=True)


def save_model(folder, layers, seed):
    """A model of noise that knows a few words; its weights, configuration and tokenizer in one folder."""
    config = transformers.LlamaConfig(
        vocab_size=24, hidden_size=32, intermediate_size=48, num_hidden_layers=layers, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=2048, eos_token_id=1, bos_token_id=None,
    )  # fmt: skip
    torch.manual_seed(seed)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    known = [
        "a",
        "</s>",
        *[
            "the",
            "of",
            "is",
            "in",
            "and",
            "to",
            "for",
            "what",
            "how",
            "with",
            "that",
            "this",
            "you",
            "it",
            "on",
            "as",
            "are",
            "an",
            "be",
            "or",
            "by",
        ],
    ]
    words = Tokenizer(WordLevel({word: token for token, word in enumerate(known)}, unk_token="a"))
    words.pre_tokenizer = Whitespace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=words, eos_token="</s>").save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    home = tmp_path_factory.mktemp("models")
    return {"weights": save_model(home / "small", 2, 0), "draft": save_model(home / "draft", 1, 1)}


@pytest.fixture(scope="module")
def run(models, preloaded_module, tmp_path_factory):
    """One whole run of the script without the app's packages: what it said and reported, and what it wrote."""
    out, bare = tmp_path_factory.mktemp("out"), tmp_path_factory.mktemp("bare")
    (bare / "sitecustomize.py").write_text(BARE, encoding="utf-8")
    path = with_code_before(bare, {"tools.gpu": BARE, "pytest": "import specchat"})
    given = ["--weights", models["weights"], "--target", models["weights"], "--draft", models["draft"]]
    done = subprocess.run(
        [ROOT / "tools" / "gpu.sh", out, "--tiny", "--device", "cpu", *given],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHON": sys.executable, "SPECCHAT_HOME": str(out), "PYTHONPATH": path},
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done, (out / "report.md").read_text(encoding="utf-8"), json.loads((out / "result.json").read_text())


def outcome_of(run, part):
    return run[2]["parts"][part]["outcome"]


def test_the_script_finds_python_and_every_part_runs_without_the_packages_of_the_app(run):
    done, report, written = run
    assert list(written["parts"]) == list(PARTS)
    assert "broke" not in done.stdout + done.stderr
    assert report in done.stdout


@pytest.mark.parametrize("part", PARTS)
def test_every_part_is_told_as_tables_with_goals_beside_figures(run, part):
    _, report, written = run
    outcome = outcome_of(run, part)
    assert outcome["figures"]
    assert outcome["tables"]
    assert not outcome["wrong"]
    assert bool(outcome["goals"]) is (part != "bandwidth")
    shown = section(
        part, PARTS[part], Done(Outcome.of(outcome), *(written["parts"][part][k] for k in ("seconds", "made")))
    )
    assert shown in report
    for table in outcome["tables"]:
        assert table["rows"]
        assert {len(row) for row in table["rows"]} == {len(table["columns"])}
    assert all(goal["value"] > 0 or part == "gaps" for goal in outcome["goals"])


def test_a_run_says_what_is_needed_to_repeat_it(run):
    _, report, written = run
    assert written["circumstances"]["command"].startswith("python -m tools.gpu --out")
    assert " --tiny --device cpu --weights " in written["circumstances"]["command"]
    for known in (written["circumstances"]["versions"]["torch"], written["circumstances"]["made"][:10], "testing"):
        assert known in report


def test_the_wide_trees_are_full(run):
    plain, *wide = outcome_of(run, "gaps")["figures"]["rounds"]
    assert plain["nodes"] == 0
    assert all(way["nodes"] > 0.7 * TINY.extent.nodes for way in wide)
    assert all(0 <= way["idle"] < 1 for way in (plain, *wide))
    for way in wide:
        assert {"plan", "draft", "verify", "wait", "judge", "keep", "observe", "rest"} == set(way["host_s"])
        assert way["host_s"]["draft"] > plain["host_s"]["draft"]


def test_real_text_is_raced_compared_and_predicted(run):
    for widened in outcome_of(run, "text")["figures"]["widened"]:
        names = [contestant["name"] for contestant in widened["lanes"]]
        assert names[0] == "plain"
        assert names[-2:] == ["transformers", "transformers prompt lookup"]
        ours = widened["lanes"][1:-2]
        assert len(ours) == 2
        assert all(
            contestant["predicted_ratio"] > 0 and contestant["texts"][1] == TINY.extent.prompts for contestant in ours
        )
    lanes = {contestant["name"]: contestant for contestant in outcome_of(run, "pair")["figures"]["lanes"]}
    best = max(contestant["tokens_per_s"] for contestant in lanes.values() if contestant["texts"])
    (goal,) = outcome_of(run, "pair")["goals"]
    assert goal["value"] == pytest.approx(best / lanes["transformers assisted"]["tokens_per_s"])


def test_what_was_measured_is_kept_until_asked_for_again_or_elsewhere(tmp_path):
    file, said = tmp_path / "a" / "result.json", []
    for again, expected in ((False, 1), (False, 1), (True, 2)):
        assert check(TINY, file, ["bandwidth"], again=again, say=said.append).code == 0
        assert len(said) == expected
    other = Results(file, dataclasses.replace(TINY, precision="bfloat16").describe(), {})
    other.load()
    assert not other.parts
    same = Results(file, TINY.describe(), {})
    same.load()
    assert same.parts["bandwidth"].outcome.figures["read_bytes_per_s"] > 0


def test_results_that_cannot_be_written_leave_those_that_were_there(tmp_path, monkeypatch):
    file = tmp_path / "result.json"
    check(TINY, file, ["bandwidth"], say=lambda text: None)
    before = file.read_text()
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError("no space")))
    with pytest.raises(OSError, match="no space"):
        check(TINY, file, ["bandwidth"], again=True, say=lambda text: None)
    assert list(tmp_path.iterdir()) == [file]
    assert file.read_text() == before


@pytest.mark.parametrize("text", ["", "[]", '{"setup": {}', "{}"])
def test_a_file_that_holds_no_results_is_refused_in_one_line(tmp_path, text):
    (tmp_path / "result.json").write_text(text)
    with pytest.raises(UsageError, match=r"result.json holds no results of this program; remove it"):
        Results(tmp_path / "result.json", TINY.describe(), {}).load()


def test_a_part_that_breaks_does_not_stop_the_others(tmp_path, monkeypatch):
    def break_(setup, results):
        raise RuntimeError("out of something")

    monkeypatch.setattr(bandwidth, "measure", break_)
    monkeypatch.setitem(run_parts.PARTS, "fine", "measures nothing")
    monkeypatch.setitem(sys.modules, "tools.gpu.fine", type("Part", (), {"measure": lambda *_: Outcome({"a": 1})}))
    said, shown = [], []
    verdict = check(TINY, tmp_path / "r.json", ["bandwidth", "fine"], say=said.append, show=shown.append)
    assert (verdict.broken, verdict.code) == (("bandwidth",), 2)
    assert "out of something" in "".join(said)
    assert list(json.loads((tmp_path / "r.json").read_text())["parts"]) == ["fine"]


def test_only_a_wrong_text_is_a_fault(tmp_path, monkeypatch):
    missed = Outcome({"a": 1}, goals=(Goal("share", 0.5, 0.85),))
    wrong = Outcome({"a": 1}, wrong=("token 3 is not the target's",))
    for outcome, code in ((missed, 0), (wrong, 1)):
        monkeypatch.setattr(bandwidth, "measure", lambda *_, outcome=outcome: outcome)
        assert check(TINY, tmp_path / "r.json", ["bandwidth"], again=True).code == code


def test_a_wrong_product_is_a_fault(tmp_path, monkeypatch):
    right = products.rebuilt_product
    monkeypatch.setattr(products, "LAYOUTS", {Kind.Q6_K: LAYOUTS[Kind.Q6_K]})
    assert check(TINY, tmp_path / "r.json", ["products"]).code == 0
    monkeypatch.setattr(products, "rebuilt_product", lambda x, weight, bias: right(x, weight, bias).roll(1, 1))
    assert check(TINY, tmp_path / "r.json", ["products"], again=True).code == 1
    found = json.loads((tmp_path / "r.json").read_text())["parts"]["products"]["outcome"]
    assert found["wrong"][0].startswith("Q6_K, 1 rows: the product is off by ")


def test_parts_are_named_rightly_or_refused(tmp_path):
    with pytest.raises(UsageError, match="did you mean 'decode'"):
        check(TINY, tmp_path / "r.json", ["decoding"])
    with pytest.raises(UsageError, match="--weights"):
        check(TINY, tmp_path / "r.json", ["text"])
    with pytest.raises(UsageError, match="--tiny"):
        Setup.on("cpu", tiny=False)


def test_a_widened_model_is_never_drafted_for_by_a_model(models):
    refuse_models_as_drafters(Settings().but(wide_trees(8)))
    for changes in (
        {"drafter": "draft_model"},
        {"drafter": "merge", "method_options": {"merge.of": "suffix,draft_model"}},
    ):
        with pytest.raises(CombinationError, match="by construction"):
            refuse_models_as_drafters(Settings().but(changes))
    small = open_small(models["weights"])
    pair, _, _ = widened_pair(TINY, small, "wide", Sizes.of(large(TINY)[1]))
    assert pair.draft is None


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
def test_on_a_gpu_the_kernels_are_recorded_and_texts_are_the_targets(models, tmp_path):
    setup = Setup.on("cuda", tiny=True, weights=models["weights"], target=models["weights"], draft=models["draft"])
    file = tmp_path / "r.json"
    assert check(setup, file, say=print, show=print).code == 0
    parts = json.loads(file.read_text())["parts"]
    assert all(way["recorded"] for way in parts["gaps"]["outcome"]["figures"]["rounds"])
    assert all(way["replayed"] == 1 for way in parts["decode"]["outcome"]["figures"]["decoding"])
