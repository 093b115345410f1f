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
HEAVY_MODULE, DRAWING_MODULE = "specchat.core.noise", "specchat.tui.app"

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
def found() -> dict[str, str]:
    """What draws or is heavy → the first module that drags it along: one known to be heavy, then all headless packages,
    then the measuring, and last one known to draw."""
    modules = [module for package in (*HEADLESS, "bench") for module in modules_of(package)]
    return imported_by([HEAVY_MODULE, *modules, DRAWING_MODULE], (*HEAVY, *DRAWING, "specchat.tui"))


@pytest.mark.parametrize("package", HEADLESS)
def test_a_headless_module_imports_nothing_that_draws(package: str, found: dict[str, str]) -> None:
    modules = modules_of(package)
    assert {name: found[name] for name in (*DRAWING, "specchat.tui") if found[name] in modules} == {}


def test_measuring_does_not_load_the_app(found: dict[str, str]) -> None:
    assert {found[name] for name in ("textual", "specchat.tui")} == {DRAWING_MODULE}


def test_modules_known_to_be_heavy_and_to_draw_are_noticed(found: dict[str, str]) -> None:
    assert found["torch"] == HEAVY_MODULE
    assert found["textual"] == DRAWING_MODULE


def test_what_only_lists_or_asks_imports_no_model_library_and_only_the_chat_imports_the_app() -> None:
    app = "specchat.cli.chat"
    modules = [*(name for name in TORCH_FREE if name != app), app]
    assert imported_by(modules, (*HEAVY, "textual")) == {"textual": app}


def test_the_app_imports_no_model_library() -> None:
    assert imported_by(modules_of("tui"), HEAVY) == {}


def test_checking_settings_imports_no_model_library_while_no_draw_is_sampled() -> None:
    checked = """
import sys
from specchat.decoding.combinations import check_settings
from specchat.settings import Settings
changes = {"drafter": "merge", "rule": "multi_step", "policy": "best_first"}
changes |= {"method_options": {"merge.of": "suffix(depth=8)+draft_model"}}
for temperature in (0.0, 0.8):
    check_settings(Settings().but({**changes, "temperature": temperature}), True)
    print("torch" in sys.modules)
"""
    assert _python(checked).stdout.split() == ["False", "True"], "the classes declare what they draw"


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
