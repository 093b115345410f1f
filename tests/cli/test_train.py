"""`specchat train`: refusals before anything is loaded, and a tiny model from nothing to a measured drafter."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time

import pytest
import typer
from contracts.trained_folders import trained_folder
from tiny_models import add_tiny_pair
from typer.testing import CliRunner

from specchat.bench import configurations
from specchat.bench.configurations import parse_configurations
from specchat.cli import training_run
from specchat.cli import training_run as training_verdict
from specchat.cli.pair_states import estimate_training
from specchat.cli.progress import StageLines, stage_reporter
from specchat.cli.train import train
from specchat.cli.training_run import as_configuration, judge, print_verdict, use, ways_to_use
from specchat.config import cache_dir, data_dir, load_catalog, own_drafters_dir, settings_of
from specchat.config.settings_saving import set_all_for_pair
from specchat.config.trained_drafters import read_drafter
from specchat.engine.protocol.training_report import Curve, Judged, MeasuredWay, curve_lines, table_lines
from specchat.errors import SpecchatError, UsageError
from specchat.models.hub.checksum import weights_sha256
from specchat.settings import Settings
from specchat.store.chats import Chats
from specchat.store.database import default_path, open_to_write
from specchat.store.records import ChatRecord, StoredMessage
from specchat.training import job
from specchat.training.job import Stage
from specchat.training.prompts import prompts_of_chats
from specchat.training.training_request import TrainingRequest
from specchat.tui.state.training import TrainingChoices

WHEN = "2026-01-31T12:00:00.000Z"

app = typer.Typer()
app.command()(train)


@pytest.fixture
def tiny(tmp_path):
    """A pair of the user's own, and prompts."""
    return str(add_tiny_pair(tmp_path))


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A home with the pair `tiny`, where the first training writes the texts for all; and prompts."""
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPECCHAT_HOME", str(home))
        return home, str(add_tiny_pair(home))


@pytest.fixture
def tiny_with_texts(written, monkeypatch):
    """The prompts. Every text is learnt from once."""
    home, prompts = written
    monkeypatch.setenv("SPECCHAT_HOME", str(home))
    once = {name: dataclasses.replace(family, epochs=1.0) for name, family in job.FAMILIES.items()}
    monkeypatch.setattr(job, "FAMILIES", once)
    return prompts


def error_of(*arguments: str) -> SpecchatError:
    error = CliRunner().invoke(app, list(arguments)).exception
    assert isinstance(error, SpecchatError), error
    return error


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("scripted",), "pair 'scripted' has no weights to learn from"),
        (("smoll",), "did you mean 'smol'"),
        (("smol", "--drafter", "hidra"), "--drafter 'hidra' is not one that can be trained; did you mean 'hydra'"),
        (("smol", "--tokens", "10"), "--tokens 10 is too few"),
        (("smol", "--hours", "-1"), "--hours -1 must be 0"),
        (("smol", "--hours", "nan"), "--hours nan must be 0"),
        (("smol", "--prompts", "selv"), "--prompts 'selv' is neither 'self', 'chats' nor a file"),
        (("smol", "--name", "../x"), "--name '../x' is not a valid name"),
        (
            ("smol", "--name", "smol-hydra"),
            "comes with specchat, and yours would be used in its place; 'smol-hydra-2' is",
        ),
        (("smol", "--name", "smol-hydra", "--resume"), "'smol-hydra-2' is free"),
        (("smol", "--from", "smol-hidra"), "--from 'smol-hidra' names no trained drafter; did you mean 'smol-hydra'"),
        (("smol", "--from", "../x"), "--from '../x' names no trained drafter; known: smol-hydra"),
        (
            ("smol", "--from", "qwen-coder-hydra"),
            "was trained for qwen2.5-coder-1.5b-instruct; known: smol-hydra",
        ),
        (
            ("smol", "--from", "smol-hydra", "--drafter", "eagle"),
            "is a 'hydra', and --drafter says 'eagle'; --drafter hydra",
        ),
        (
            ("smol", "--from", "smol-hydra", "--drafter", "hidra"),
            "is not one that can be trained; did you mean 'hydra'",
        ),
        (("smol", "--from", "smol-hydra", "--name", "smol-hydra"), "is also the drafter that --from names"),
        (("gemma", "--from", "smol-hydra"), "was trained for smollm2-135m-instruct; none for gemma-3-270m is known"),
        (
            ("smol", "--drafter", "draft_model", "--loss", "forwardkl"),
            "--loss 'forwardkl' is not one that can be learnt with; did you mean 'forward_kl'",
        ),
        (
            ("smol", "--drafter", "mtp", "--loss", "tvd"),
            "--loss is for networks of their own; mtp learns through the target",
        ),
        (
            ("smol", "--drafter", "hydra", "--ensemble", "2"),
            "--ensemble is for --drafter prompt_tokens and mtp and speculative_streaming; hydra has",
        ),
        (("smol", "--drafter", "prompt_tokens", "--ensemble", "17"), "--ensemble 17 must be 1 to 16"),
        (
            ("smol", "--drafter", "hydra", "--depths", "1,2"),
            "--depths is for --drafter draft_model; hydra guesses at its last layer alone",
        ),
        (("smol", "--drafter", "draft_model", "--depths", "2,1"), "--depths '2,1' are not ascending numbers of layers"),
        (("smol", "--drafter", "draft_model", "--depths", "1,x"), "--depths '1,x' are not ascending numbers of layers"),
        (("smol", "--drafter", "draft_model", "--depths", "0,4"), "from 1 to 64, as 1,2,4"),
        (("smol", "--drafter", "draft_model", "--depths", "1,65"), "from 1 to 64, as 1,2,4"),
        (("smol", "--drafter", "hydra", "--form", "fs"), "--form is for --drafter eagle; hydra has one form"),
        (
            ("smol", "--drafter", "eagle", "--form", "fpad"),
            "--form 'fpad' is not one of eagle, fs, fspad; did you mean",
        ),
        (("smol", "--drafter", "judge", "--form", "fs"), "--form is for drafters; a judge is fitted at once"),
        (("smol", "--drafter", "judge", "--depths", "1,2"), "--depths is for drafters; a judge is fitted at once"),
        (("smol", "--drafter", "judge", "--plain", "x.txt"), "--plain is for drafters; a judge is fitted at once"),
        (("smol", "--drafter", "judge", "--ensemble", "2"), "--ensemble is for drafters; a judge is fitted at once"),
        (("smol", "--drafter", "judge", "--name", "../x"), "--name '../x' is not a valid name"),
        (("smol", "--select", "behind"), "--select 'behind' is not a way to select tokens"),
        (
            ("smol", "--drafter", "draft_model", "--reference", "smol-hydra"),
            "--reference 'smol-hydra' is a 'hydra', and --drafter says 'draft_model'",
        ),
        (
            ("smol", "--drafter", "draft_model", "--reference", "mine"),
            "--reference 'mine' names no trained drafter; none for smollm2-135m-instruct is known, so leave out "
            "--reference",
        ),
        (("smol", "--prompts", "chats", "--yes"), "--prompts chats: no chat of yours is kept here yet"),
    ],
)
def test_what_cannot_be_trained_is_refused_before_anything_is_loaded(arguments, said):
    error = error_of(*arguments)
    assert isinstance(error, UsageError)
    assert said in str(error)
    assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("device", "cpu:2", "nearest that works: device = 'cpu'"),
        ("target_at", "ssh:box", "run specchat train on that machine"),
    ],
)
@pytest.mark.parametrize("drafter", ["hydra", "judge"])
def test_a_target_in_several_processes_is_refused_before_it_is_loaded(tiny, monkeypatch, drafter, key, value, said):
    monkeypatch.setattr(configurations, "load_pair", lambda *_: pytest.fail("nothing is loaded"))
    set_all_for_pair("tiny", {key: value})
    refused = error_of("tiny", "--drafter", drafter)
    assert isinstance(refused, UsageError)
    assert said in str(refused)


def test_the_apps_dialog_refuses_them_too():
    with pytest.raises(UsageError, match="'smol-hydra-2' is free"):
        estimate_training(TrainingChoices("smol", "hydra", "self", 400_000, 0.0, "smol-hydra"))
    with pytest.raises(UsageError, match="names no trained drafter; did you mean 'smol-hydra'"):
        estimate_training(TrainingChoices("smol", "hydra", "self", 400_000, 0.0, "mine", "smol-hidra"))
    (own_drafters_dir() / "mine").mkdir(parents=True)
    with pytest.raises(
        UsageError, match="is also the drafter that --from names, and would be replaced; 'mine-2' is free"
    ):
        estimate_training(TrainingChoices("smol", "hydra", "self", 400_000, 0.0, "mine", "mine"))


@pytest.fixture
def requested(monkeypatch) -> list[TrainingRequest]:
    """What is trained instead of training it."""
    requests: list[TrainingRequest] = []
    monkeypatch.setattr(training_run, "trainable_target", lambda pair: None)
    monkeypatch.setattr(training_run, "_train", lambda request, *_: requests.append(request))
    monkeypatch.setattr(training_run, "_print_verdict", lambda *_: None)
    return requests


def older_training(name: str) -> None:
    """A training that was begun when no drafter of this name came with specchat."""
    (cache_dir() / "training" / "target-0123" / "self-0" / "runs" / name).mkdir(parents=True)


@pytest.mark.parametrize("named", [(), ("--name", "smol-hydra")], ids=["unnamed", "named"])
def test_an_older_training_with_a_shipped_drafters_name_goes_on_and_says_whose_name_it_has(requested, named):
    older_training("smol-hydra")
    result = CliRunner().invoke(app, ["smol", *named, "--resume", "--no-verdict"])
    assert result.exit_code == 0, result.output
    assert [request.name for request in requested] == ["smol-hydra"]
    assert "smol-hydra comes with specchat too" in result.stderr
    assert str(requested[0].folder) in result.stderr


def test_a_training_without_a_name_takes_one_that_hides_no_drafter(requested):
    for words in ([], ["--resume"]):
        result = CliRunner().invoke(app, ["smol", *words, "--no-verdict"])
        assert result.exit_code == 0, result.output
        assert "comes with" not in result.stderr
    assert [request.name for request in requested] == ["smol-hydra-2"] * 2


def test_what_is_trained_follows_from_the_drafter_that_it_begins_with(tiny, requested, monkeypatch):
    place = own_drafters_dir() / "mine"
    trained_folder(place, {}, "eagle", weights_sha256(load_catalog().model("tiny-model")))
    result = CliRunner().invoke(app, ["tiny", "--prompts", tiny, "--from", "mine", "--no-verdict"])
    assert result.exit_code == 0, result.output
    assert [(one.drafter, one.start, one.name) for one in requested] == [("eagle", "mine", "tiny-eagle")]
    assert "'tiny-eagle'" not in str(error_of("tiny", "--from", "mine", "--name", "mine"))
    (place / "weights.safetensors").write_bytes(b"")
    assert "has 0 bytes, and should have" in str(error_of("tiny", "--from", "mine"))


def test_a_tiny_model_is_trained_and_judged_from_the_command_line(tiny_with_texts, monkeypatch):
    monkeypatch.setattr(job, "_MEASUREMENTS", 3)
    monkeypatch.setattr(training_verdict, "_QUESTIONS", 1)
    monkeypatch.setattr(training_verdict, "_TOKENS", 8)
    flags = ["tiny", "--prompts", tiny_with_texts, "--tokens", "5200", "--threads", "1"]
    found = CliRunner().invoke(app, [*flags, "--output", "json"])
    assert found.exit_code == 0, (found.output, found.exception)
    said = json.loads(found.stdout)
    assert said["name"] == "tiny-hydra"
    assert (data_dir() / "drafters" / "tiny-hydra" / "weights.safetensors").stat().st_size == said["size"]
    assert said["figures"]["tokens_seen"] > 1000
    assert [way["name"] for way in said["verdict"]["ways"]] == [
        "plain",
        "default",
        "alone",
        "merged with prompt_lookup",
    ]
    assert said["verdict"]["ways"][1]["ratio"] > 0
    assert "specchat train tiny --drafter hydra" in said["data"]["command"]
    assert "'tiny-hydra' is there already" in str(error_of(*flags))
    again = CliRunner().invoke(
        app, [*flags, "--from", "tiny-hydra", "--name", "more", "--no-verdict", "--output", "json"]
    )
    assert again.exit_code == 0, (again.output, again.exception)
    more = json.loads(again.stdout)
    assert more["data"]["from_sha256"] == read_drafter(data_dir() / "drafters" / "tiny-hydra", ("hydra",)).sha256
    assert more["figures"]["curve_tau"][0] == said["figures"]["chain_tau_held_out"], "the same texts are held out"
    assert more["figures"]["chain_tau_held_out"] >= said["figures"]["chain_tau_held_out"]


@pytest.mark.parametrize("drafter", ["prompt_tokens", "speculative_streaming"])
def test_masks_are_trained_through_a_model_from_its_file_and_used(tiny_with_texts, monkeypatch, drafter):
    monkeypatch.setattr(training_verdict, "_QUESTIONS", 1)
    monkeypatch.setattr(training_verdict, "_TOKENS", 8)
    flags = [
        "--prompts",
        tiny_with_texts,
        "--tokens",
        "5200",
        "--threads",
        "1",
        "--drafter",
        drafter,
        "--output",
        "json",
    ]
    found = CliRunner().invoke(app, ["tiny", *flags])
    assert found.exit_code == 0, (found.output, found.exception)
    said = json.loads(found.stdout)
    assert said["name"] == f"tiny-{drafter}"
    assert said["figures"]["tokens_seen"] > 500
    assert "alone" in [way["name"] for way in said["verdict"]["ways"]]
    assert all(way["same_text"] for way in said["verdict"]["ways"])


def test_a_tiny_draft_model_is_trained_and_another_learns_where_it_is_ahead(tiny_with_texts, monkeypatch):
    monkeypatch.setattr(job, "_MEASUREMENTS", 3)
    flags = ["tiny", "--drafter", "draft_model", "--prompts", tiny_with_texts, "--tokens", "5200", "--threads", "1"]
    found = CliRunner().invoke(app, [*flags, "--no-verdict"])
    assert found.exit_code == 0, (found.output, found.exception)
    assert "--drafter draft_model --set draft_model.model=tiny-draft_model" in found.stdout
    first = read_drafter(data_dir() / "drafters" / "tiny-draft_model", ("draft_model",))
    assert (first.options["layers"], first.data["loss"]) == (2, "forward_kl")
    assert first.size < 400_000, "the target's embedding and head are not in it"
    more = [*flags, "--name", "second", "--loss", "tvd", "--reference", "tiny-draft_model"]
    more += ["--texts", "mixed", "--no-verdict"]
    found = CliRunner().invoke(app, [*more, "--output", "json"])
    assert found.exit_code == 0, (found.output, found.exception)
    data = json.loads(found.stdout)["data"]
    assert (data["loss"], data["reference"]) == ("tvd", f"tiny-draft_model ({first.sha256[:12]})")
    assert data["written_by"] == "mixed"
    assert "--loss tvd --reference tiny-draft_model --texts mixed" in data["command"]
    assert ways_to_use(settings_of(load_catalog().pair("tiny")), first)["alone"]["draft_model.model"] == first.name
    again = error_of(*more[:-1], "--resume", "--loss", "jsd", "--no-verdict")
    assert "was made with loss = tvd, not jsd" in str(again)


@pytest.fixture
def chatted():
    chats = Chats(open_to_write(default_path())[0])
    with chats.transaction():
        for id, text in (("abc234", "  Rust or Go, for a small server?"), ("abd567", "Who painted the night watch?")):
            chats.save(ChatRecord(id, text, WHEN, WHEN, leaf="b"))
            chats.add(id, StoredMessage("a", None, "user", text, WHEN))
            chats.add(id, StoredMessage("b", "a", "assistant", "It depends.", WHEN, "done"))
    chats._sql.close()


def test_chats_are_learnt_from_only_when_their_owner_agrees(chatted):
    assert prompts_of_chats() == ["Rust or Go, for a small server?", "Who painted the night watch?"]
    assert "add --yes to allow it" in str(error_of("smol", "--prompts", "chats"))


@pytest.mark.slow
def test_a_training_that_was_killed_goes_on(tiny):
    command = [sys.executable, "-c", "import sys; from specchat.cli import main; sys.exit(main())", "train", "tiny"]
    command += ["--prompts", tiny, "--tokens", "5200", "--no-verdict", "--threads", "1"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("learning"):
            break
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    refused = subprocess.run(command, capture_output=True, text=True)
    assert refused.returncode == 1
    assert refused.stderr.count("\n") < 12
    assert "--resume goes on with it" in refused.stderr
    again = subprocess.run([*command, "--resume", "--output", "json"], capture_output=True, text=True)
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["name"] == "tiny-hydra"
    assert "replies: " not in again.stderr, "finished texts are not written again"


class _Figures:
    def __init__(self, ratio, ok=True):
        self.same_text = type("SameText", (), {"ok": ok})
        self.acceptance_length = 1.25
        self.ratio = type("Interval", (), {"value": ratio, "low": ratio - 0.1, "high": ratio + 0.1})

    def group(self):
        return self


def verdict_on(*results):
    report = type("Report", (), {"runs": [type("Run", (), {"results": results})]})
    return judge(report, {"alone": {"drafter": "hydra"}, "merged": {"drafter": "merge"}})


def test_the_quickest_way_wins_where_it_is_quicker_than_the_default_and_its_texts_are_right():
    plain = _Figures(1.0)
    best = verdict_on(plain, _Figures(1.3), _Figures(1.4), _Figures(1.5))
    assert (best.best, best.settings) == ("merged", {"drafter": "merge"})
    assert verdict_on(plain, _Figures(1.3), _Figures(1.4), _Figures(1.5, ok=False)).best == "alone"
    stays = verdict_on(plain, _Figures(1.6), _Figures(1.4), _Figures(1.5))
    assert (stays.best, stays.settings) == ("", {})
    assert table_lines(verdict_on(plain, _Figures(1.6), _Figures(1.4), _Figures(1.5, ok=False))) == [
        "         × plain  (95 %)       τ",
        "plain       1.00  0.90–1.10    1.25",
        "default     1.60  1.50–1.70    1.25",
        "alone       1.40  1.30–1.50    1.25",
        "merged      1.50  1.40–1.60    1.25  its texts are not the target's own",
    ]


def test_the_drafter_is_tried_alone_and_in_the_pairs_own_trees_beside_its_own_drafter():
    trained = type("Trained", (), {"method": "hydra", "name": "mine"})
    settings = Settings(drafter="suffix", policy="best_first", controller="goodput", nodes=16, depth=16, width=2)
    alone, merged = map(as_configuration, ways_to_use(settings, trained).values())
    assert alone == "hydra:best_first:follow:goodput:nodes=8:depth=4:width=4:hydra.weights=mine"
    assert merged.startswith("merge:best_first:follow:goodput:nodes=16:depth=16:width=2")
    assert merged.endswith("merge.of=suffix+hydra")
    assert [c.settings.drafter for c in parse_configurations(f"{alone},{merged}", settings)] == ["hydra", "merge"]


@pytest.mark.parametrize(
    ("method", "of", "said"),
    [
        ("hydra", "suffix(min_match=2)+hydra", "suffix(min_match=2)+hydra"),
        ("eagle", "suffix(min_match=2)+hydra", "suffix(min_match=2)+eagle"),
        (
            "hydra",
            "hydra(tokens=512,weights=old), suffix(depth=8 factor=2)",
            "suffix(depth=8 factor=2)+hydra(tokens=512)",
        ),
        ("hydra", "suffix(depth=8)+suffix(depth=64)", "suffix(depth=8)+suffix(depth=64)+hydra"),
        ("medusa", "cascade(of=suffix+hydra,least=0.5)", "cascade(least=0.5 of=suffix+hydra)+medusa"),
    ],
)
def test_what_the_pairs_merge_is_made_of_is_measured_and_proposed_with_its_options(method, of, said, capsys):
    trained = type("Trained", (), {"method": method, "name": "mine"})
    settings = Settings(pair="smol", drafter="merge", method_options={"merge.of": of})
    _, (name, merged) = ways_to_use(settings, trained).items()
    (measured,) = parse_configurations(as_configuration(merged), settings)
    assert measured.settings.method_options["merge.of"] == merged["merge.of"] == said
    ways = [MeasuredWay(way, 1.0) for way in ("plain", "default", name)]
    print_verdict("smol", "mine", Judged(ways, name, dict(merged)))
    proposed = [shlex.split(line) for line in capsys.readouterr().out.splitlines() if "config set merge.of" in line]
    assert proposed == [["specchat", "config", "set", "merge.of", said, "--pair", "smol"]]


def test_smols_own_default_is_what_a_new_drafter_of_its_kind_is_tried_in():
    settings = settings_of(load_catalog().pair("smol"))
    _, merged = ways_to_use(settings, type("Trained", (), {"method": "hydra", "name": "mine"})).values()
    assert merged["merge.of"] == settings.method_options["merge.of"]


def test_the_way_that_was_chosen_is_what_the_pair_starts_with(tiny):
    use("tiny", {"drafter": "hydra", "nodes": 8, "hydra.weights": "tiny-hydra"})
    settings = settings_of(load_catalog().pair("tiny"))
    assert (settings.drafter, settings.nodes) == ("hydra", 8)
    assert settings.method_options["hydra.weights"] == "tiny-hydra"


def test_the_curve_is_drawn_in_text():
    assert curve_lines(Curve([0, 50_000, 100_000], [1.0, 1.25, 1.5])) == [
        "          0  1.00",
        "     50,000  1.25  " + "█" * 20,
        "    100,000  1.50  " + "█" * 40,
    ]


def test_lines_of_progress_say_what_how_far_and_how_long_still(capsys):
    now = [100.0]
    lines = StageLines(lambda: now[0])
    for at, done in ((100.0, 0.0), (105.0, 10.0), (130.0, 50.0), (160.0, 100.0)):
        now[0] = at
        lines(Stage("replies", done, 100.0, "tokens", f"{done:.0f} texts"))
    assert capsys.readouterr().err.splitlines() == [
        "replies: 0 %, 0 texts",
        "replies: 50 %, 50 texts, 30 s to go",
        "replies: 100 %, 100 texts",
    ]


def test_bars_say_what_how_far_how_long_and_as_much_of_the_rest_as_fits(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    for name, value in {"COLUMNS": "80", "TERM": "xterm", "NO_COLOR": "1"}.items():
        monkeypatch.setenv(name, value)
    with stage_reporter(time.monotonic, as_reports=False) as tell:
        tell(Stage("loading", 0, 0, "", "reading the model"))
        tell(Stage("learning", 0.6, 1.0, "share", "τ 1.39 (best 1.39), right by depth 0.26 0.29 0.43 0.56"))
    shown = [line.rstrip() for line in re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", terminal.getvalue()).splitlines()]
    [line] = {line for line in shown if line.startswith("learning") and "60 %" in line}
    assert len(line) <= 80
    assert "-:--:-- τ 1.39 (best 1.39), right by depth …" in line
