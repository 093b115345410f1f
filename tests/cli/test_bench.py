"""`specchat bench` and `specchat check`: output, exit codes, errors before anything is loaded, interruption."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

from specchat.acceptance import ACCEPTANCE_RULES
from specchat.bench import interleaved_run as floor
from specchat.bench.interleaved_run import InterleavedRun
from specchat.cli.bench import bench
from specchat.cli.bench_model import chosen_questions
from specchat.cli.check import check
from specchat.drafters import DRAFTERS
from specchat.engine.server import pair_loading
from specchat.errors import SpecchatError, UsageError
from specchat.models.hub import fetching
from specchat.settings import Settings
from specchat.trees import TREE_POLICIES
from tools.gpu import run_parts
from tools.gpu.run_parts import Verdict
from tools.gpu.setup import Setup

app = typer.Typer()
app.command()(bench)
app.command()(check)

QUICK = ("--pair", "scripted", "--limit", "2", "--max-tokens", "8", "--first-turns", "--no-perplexity")


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """The scripted pair, without its pretended slowness, whatever number format is asked for."""
    monkeypatch.setattr(pair_loading, "_SCRIPTED", {"target": (6, 0.0), "draft": (2, 0.0)})
    monkeypatch.delenv("SPECCHAT_MIRRORS", raising=False)


def run(*arguments: str):
    return CliRunner().invoke(app, list(arguments))


def error_of(*arguments: str) -> SpecchatError:
    error = run(*arguments).exception
    assert isinstance(error, SpecchatError), error
    return error


def test_the_report_is_one_json_object_and_the_progress_is_elsewhere():
    found = run("bench", *QUICK, "--compare", "auto,prompt_lookup:chain:nodes=3", "--output", "json")
    assert found.exit_code == 0, found.output
    report = json.loads(found.stdout)
    (one,) = report["runs"]
    assert [r["name"] for r in one["results"]] == ["plain", "auto", "prompt_lookup:chain:nodes=3"]
    assert report["complete"]
    assert report["circumstances"]["versions"]["specchat"]
    assert all(r["same_text"]["equal"] == 2 for r in one["results"][1:])


@pytest.mark.parametrize("limit", [0, 12])
def test_follow_up_questions_are_asked_unless_they_are_left_out(limit):
    turns = [
        max(len(question.turns) for question in chosen_questions("own", None, limit, first_turns).questions)
        for first_turns in (False, True)
    ]
    assert turns[0] > turns[1] == 1


def test_the_floor_runs_every_drafter_with_every_policy_and_names_the_slow_ones(monkeypatch):
    found = run("bench", *QUICK, "--floor", "--compare", "prompt_lookup,suffix:template:nodes=40")
    lines = found.stdout.splitlines()
    names = [f"prompt_lookup:{policy}:follow:goodput" for policy in TREE_POLICIES]
    assert all(any(name in line for line in lines) for name in [*names, "suffix:template:follow:goodput:nodes=40"])
    assert ("none below 0.97 × plain" in lines[-1]) == (found.exit_code == 0)
    monkeypatch.setattr(floor, "FLOOR", 1e9)
    slow = run("bench", *QUICK, "--floor", "--compare", "suffix:chain")
    assert slow.exit_code == 1
    assert slow.stdout.splitlines()[-2].endswith("suffix:chain:follow:goodput  below")
    assert slow.stdout.splitlines()[-1] == "1 of 1 below 1000000000.0 × plain"


def test_the_floor_of_everything_is_all_drafters_that_the_pair_can_use():
    def drafters(has_draft_model, trained=(), datastore=False):
        missing = floor.missing_for_drafters(has_draft_model, trained, datastore)
        pieces = floor.floor_comparison("auto", Settings(), missing).split(",")
        assert len(pieces) % len(TREE_POLICIES) == 0
        return {piece.split(":")[0] for piece in pieces}

    trained = {name for name, method in DRAFTERS.items() if method.needs_weights}
    # What comes in the target's files is not known before these are read.
    found_late = {name for name, method in DRAFTERS.items() if method.needs_shipped_head}
    assert drafters(True, trained, True) == set(DRAFTERS) - {"none"} - found_late
    assert drafters(True, {"hydra"}) == set(DRAFTERS) - {"none", "datastore"} - trained - found_late | {"hydra"}
    assert drafters(False) == {name for name in drafters(True) if not DRAFTERS[name].needs_draft_model}


def test_every_drafter_is_measured_in_one_table_and_those_without_what_they_need_say_so():
    compared = ("--compare", "suffix:chain:nodes=3,every", "--limit", "1", "--max-tokens", "4")
    found = run("bench", *QUICK, *compared, "--output", "json")
    assert found.exit_code == 0, found.output
    (one,) = json.loads(found.stdout)["runs"]
    measured = {result["name"] for result in one["results"]} - {"plain", "suffix:chain:nodes=3"}
    said = {name for name in DRAFTERS if any(note.startswith(f"left out: {name}") for note in one["notes"])}
    assert measured >= {"prompt_lookup", "suffix", "token_recycling", "draft_model"}
    assert said >= {name for name, method in DRAFTERS.items() if method.needs_weights or method.needs_datastore}
    assert measured | said == set(DRAFTERS) - {"none", "grammar"}
    assert not measured & said


@pytest.mark.parametrize(
    ("part", "words"), [("sufix", "suffix"), ("suffix:chin", "chain"), ("suffix:chain:follow", "controller is goodput")]
)
def test_a_part_of_the_floor_that_is_not_there_is_refused_by_name(part, words):
    assert words in str(error_of("bench", "--floor", "--compare", part, *QUICK))


def test_the_table_and_a_line_for_each_reply():
    table = run("bench", *QUICK)
    assert "replies are plain's, token by token" in table.stdout
    lines = [json.loads(line) for line in run("bench", *QUICK, "--output", "jsonl").stdout.splitlines()]
    assert {line["contestant"] for line in lines} == {"plain", "auto"}


def test_a_report_is_saved_with_perplexity_for_each_number_format(tmp_path):
    file = tmp_path / "report.json"
    arguments = [word for word in QUICK if word != "--no-perplexity"]
    found = run("bench", *arguments, "--dtypes", "float32,bfloat16", "--warm", "--save", str(file))
    assert found.exit_code == 0, found.output
    report = json.loads(file.read_text())
    assert len(report["runs"]) == 2
    assert all(one["perplexity"]["value"] > 1 for one in report["runs"])
    assert "auto (warm)" in [r["name"] for r in report["runs"][0]["results"]]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--compare", "sufix"), "is called 'sufix'"),
        (("--dtypes", "float23"), "did you mean 'float32'"),
        (("--prompts", "nothing-here"), "neither a file nor a prompt set"),
        (("--category", "cod"), "did you mean 'code'"),
        (("--save", "/nowhere/at/all.json"), "cannot be written"),
        (("--plot", "x.jpeg"), "must end in"),
        (("--rule", "multi_step", "--temperature", "1", "--drafter", "suffix"), "proposes points"),
    ],
)
def test_what_cannot_be_done_is_refused(arguments, said):
    error = error_of("bench", *QUICK, *arguments)
    assert isinstance(error, UsageError)
    assert said in str(error)


def test_the_check_of_a_gpu_is_no_work_for_a_processor():
    assert "too many for a processor" in str(error_of("bench", "gpu", "--device", "cpu"))


@pytest.mark.parametrize(("pair", "roles"), [("smol", {"weights"}), ("qwen-coder", {"target", "draft"})])
def test_the_check_of_a_gpu_takes_the_weights_of_a_pair(pair, roles, monkeypatch, tmp_path):
    asked = {}

    def note(setup, file, **_):
        asked.update(setup=setup, file=file)
        return Verdict(wrong=("text",))

    monkeypatch.setattr(run_parts, "check", note)
    monkeypatch.setattr(Setup, "on", classmethod(lambda cls, device, tiny, **fetch: (device, tiny, fetch)))
    monkeypatch.setattr(fetching, "fetch", lambda spec: spec.name)
    file = tmp_path / "r.json"
    assert run("bench", "gpu", "--pair", pair, "--device", "cuda", "--save", str(file)).exit_code == 1
    device, tiny, given = asked["setup"]
    assert (device, tiny, set(given), asked["file"]) == ("cuda", False, roles, file)


def test_an_interruption_prints_what_was_measured(monkeypatch):
    whole = InterleavedRun._hold

    def interrupted(self, question, contestants, number):
        yield from whole(self, question, contestants, number)
        raise KeyboardInterrupt

    monkeypatch.setattr(InterleavedRun, "_hold", interrupted)
    found = run("bench", *QUICK, "--output", "json")
    assert found.exit_code == 130
    report = json.loads(found.stdout)
    assert not report["complete"]
    assert len(report["runs"][0]["measured"]) == 2


def test_an_interruption_before_anything_was_measured_is_no_error(monkeypatch):
    def interrupted(self, question, contestants, number):
        raise KeyboardInterrupt
        yield

    monkeypatch.setattr(InterleavedRun, "_hold", interrupted)
    found = run("bench", *QUICK)
    assert found.exit_code == 130
    assert "interrupted" in found.stdout


def test_the_check_passes_and_prints_a_page():
    found = run("check", "--pair", "scripted")
    assert found.exit_code == 0, found.output
    assert "all 5 checks passed" in found.stdout
    assert len(found.stdout.splitlines()) < 40


def test_the_check_as_json_holds_every_finding():
    data = json.loads(run("check", "--pair", "scripted", "--output", "json").stdout)
    assert data["ok"]
    assert [finding["status"] for finding in data["findings"]] == ["passed"] * 5


def test_the_checks_of_the_scripted_pair_try_guesses_that_are_right():
    data = json.loads(run("check", "--pair", "scripted", "--output", "json").stdout)
    for finding in data["findings"]:
        figures = finding["figures"]
        assert figures["accepted"] > 0 or "always wrong" in finding["claim"], finding
        assert figures.get("drafted", 1) > 0


@pytest.mark.parametrize("flags", [("--controller", "off"), ("--nodes", "0"), ("--drafter", "none")])
def test_checks_without_a_guess_are_counted_as_skipped(flags):
    found = run("check", "--pair", "scripted", *flags)
    assert found.exit_code == 0, found.output
    assert "3 of 5 checks passed, 2 were skipped" in found.stdout
    assert found.stdout.count("no guess was made") == 2


def test_a_check_that_fails_exits_with_1(monkeypatch):
    from specchat.acceptance.follow import Follow
    from specchat.core.round import Verdict

    def wrong(self, tree, reading, context):
        return Verdict((), 65 if len(tree) > 1 else 66, tree)

    monkeypatch.setattr(Follow, "judge", wrong)
    found = run("check", "--pair", "scripted")
    assert found.exit_code == 1
    assert "CHECKS FAILED" in found.stdout


def test_asking_for_help_imports_no_torch():
    code = (
        "import sys, typer; from typer.testing import CliRunner\n"
        "from specchat.cli.bench import bench; from specchat.cli.check import check\n"
        "app = typer.Typer(); app.command()(bench); app.command()(check)\n"
        "for name in ('bench', 'check'): assert CliRunner().invoke(app, [name, '--help']).exit_code == 0\n"
        "assert 'torch' not in sys.modules and 'rich.progress' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_table_of_rules_has_every_lossless_rule_and_every_shape_of_tree(tmp_path):
    found = run("bench", *QUICK, "--rules", "--drafter", "draft_model", "--save", str(tmp_path / "rules.json"))
    assert found.exit_code == 0, found.output
    report = json.loads((tmp_path / "rules.json").read_text())
    lossless = {name for name, method in ACCEPTANCE_RULES.items() if method.load().lossless}
    for table in report["tables"]:
        assert table["places"] > 1
        by_shape = {}
        for row in table["rows"]:
            by_shape.setdefault(row["shape"], set()).add(row["rule"].split(",")[0])
            assert 1.0 <= row["tokens"]["value"] <= 1 + row["nodes"]
        assert len(by_shape) == 3
        assert all(rules == lossless for rules in by_shape.values())
    assert all(rule in found.stdout for rule in lossless)


def test_the_table_of_rules_needs_a_drafter_with_laws():
    words = "drafter 'suffix' has none; nearest that works: --drafter draft_model"
    assert words in str(error_of("bench", *QUICK, "--rules", "--drafter", "suffix"))
