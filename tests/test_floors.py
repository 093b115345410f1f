"""The floors hold at run time too: a linter reads import statements, these tests look at what was really imported."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

HEADLESS = sorted(
    place.stem
    for place in (ROOT / "specchat").iterdir()
    if (place.suffix == ".py" or (place / "__init__.py").exists())
    and place.stem not in ("__init__", "__main__", "cli", "tui", "bench")
)
"""Everything below the app, the commands and the measuring: the engine's side, and what both sides share."""

TORCH_FREE = (
    "specchat", "specchat.errors", "specchat.registry", "specchat.settings", "specchat.config",
    "specchat.drafters", "specchat.drafters.options", "specchat.drafters.choice", "specchat.decoding.combinations",
    "specchat.trees", "specchat.trees.options",
    "specchat.acceptance", "specchat.controllers", "specchat.decoding.families",
    "specchat.engine.protocol.events", "specchat.engine.protocol.text", "specchat.engine.protocol.describe",
    "specchat.engine.client.client", "specchat.engine.client.replay", "specchat.engine.server.host",
    "specchat.models.hub",
    "specchat.store.writer", "specchat.store.chat_json",
    "specchat.cli", "specchat.cli.flags", "specchat.cli", "specchat.cli.models", "specchat.cli.run",
    "specchat.engine.client.start_engine", "specchat.cli.chat", "specchat.cli.serve", "specchat.serve.server",
    "specchat.training.training_request", "specchat.library",
)  # fmt: skip
"""What lists, asks and plays back, but never computes."""

HEAVY = ("torch", "transformers")
DRAWING = ("textual", "rich")

_IMPORT_ALL = """
import importlib, json, sys
modules, unwanted = json.loads(sys.argv[1])
guilty = {}
for module in modules:
    before = {name for name in unwanted if name in sys.modules}
    importlib.import_module(module)
    guilty |= {name: module for name in unwanted if name in sys.modules and name not in before}
print(json.dumps(guilty))
"""

_RUN_COMMAND = """
import atexit, json, sys
unwanted = json.loads(sys.argv[1])
sys.argv = ["specchat", *sys.argv[2:]]
@atexit.register
def tell():
    print("imported:", json.dumps([name for name in unwanted if name in sys.modules]), file=sys.stderr)
from specchat.cli import main
main()
"""


_OPTIONAL = {"specchat.models.decoder.triton_product": "triton"}
"""Module → the package without which it is not imported."""


def modules_of(package: str) -> list[str]:
    """The package or module of this name inside specchat, and everything in it."""
    place = ROOT / "specchat" / package
    files = sorted(place.rglob("*.py")) if place.is_dir() else [place.with_suffix(".py")]
    dotted = [".".join(file.relative_to(ROOT).with_suffix("").parts) for file in files]
    absent = {name for name, needed in _OPTIONAL.items() if importlib.util.find_spec(needed) is None}
    return [name.removesuffix(".__init__") for name in dotted if name not in absent]


def imported_by(modules: list[str], unwanted: tuple[str, ...]) -> dict[str, str]:
    """Which of the unwanted packages a fresh interpreter has after importing these modules, and whose fault it is."""
    return json.loads(_python(_IMPORT_ALL, json.dumps([modules, unwanted])).stdout)


def _python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, cwd=ROOT, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture(scope="module")
def drawing() -> dict[str, str]:
    """What draws → the first module that drags it along, after all headless packages and then the measuring."""
    modules = [module for package in (*HEADLESS, "bench") for module in modules_of(package)]
    return imported_by(modules, (*DRAWING, "specchat.tui"))


@pytest.mark.parametrize("package", HEADLESS)
def test_a_headless_module_imports_nothing_that_draws(package: str, drawing: dict[str, str]) -> None:
    modules = modules_of(package)
    assert {name: module for name, module in drawing.items() if module in modules} == {}


def test_measuring_does_not_load_the_app(drawing: dict[str, str]) -> None:
    assert drawing.keys() & {"textual", "specchat.tui"} == set()


def test_what_only_lists_or_asks_imports_no_model_library_and_only_the_chat_imports_the_app() -> None:
    app = "specchat.cli.chat"
    modules = [*(name for name in TORCH_FREE if name != app), app]
    assert imported_by(modules, (*HEAVY, "textual")) == {"textual": app}


def test_the_app_imports_no_model_library() -> None:
    assert imported_by(modules_of("tui"), HEAVY) == {}


def test_this_test_would_notice() -> None:
    found = imported_by(["specchat.core.noise", "specchat.tui.app"], (*HEAVY, *DRAWING))
    assert found == {"torch": "specchat.core.noise", **dict.fromkeys(DRAWING, "specchat.tui.app")}


def test_checking_settings_imports_no_model_library_while_no_draw_is_sampled() -> None:
    checked = """
import sys
from specchat.decoding.combinations import check_settings
from specchat.settings import Settings
changes = {"drafter": "merge", "rule": "multi_step", "policy": "best_first", "temperature": float(sys.argv[1])}
check_settings(Settings().but({**changes, "method_options": {"merge.of": "suffix(depth=8)+draft_model"}}), True)
print("torch" in sys.modules)
"""
    assert _python(checked, "0").stdout.split() == ["False"]
    assert _python(checked, "0.8").stdout.split() == ["True"], "the classes declare what they draw"


@pytest.mark.parametrize("words", [["--help"], ["run", "--help"], ["methods"], ["models", "list"]], ids=" ".join)
def test_a_command_that_only_tells_imports_no_model_library(words: list[str], tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _RUN_COMMAND, json.dumps([*HEAVY, "textual"]), *words],
        capture_output=True,
        text=True,
        env={**os.environ, "SPECCHAT_HOME": str(tmp_path)},
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.strip().endswith("imported: []")


def test_every_package_stands_on_a_floor_and_imports_from_floors_below() -> None:
    done = subprocess.run(
        [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("call", "only"),
    [(r"\bFileLock\(|\bflock\(", "config/kept_files.py"), (r"\bfsync\(", "config/kept_files.py")],
)
def test_locking_and_flushing_are_done_in_one_place_each(call: str, only: str) -> None:
    package = ROOT / "specchat"
    found = [file for file in package.rglob("*.py") if re.search(call, file.read_text(encoding="utf-8"))]
    assert [file.relative_to(package).as_posix() for file in found] == [only]
