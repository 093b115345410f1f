"""What importing a part drags along, seen in a process of its own: a linter reads the static graph alone."""

from __future__ import annotations

import os
import pkgutil
import subprocess
import sys

import pytest

import specchat

HEAVY = ("torch", "transformers", "textual")

HEADLESS = ("core", "structures", "models", "drafters", "trees", "acceptance", "controllers", "decoding", "engine")

TORCH_FREE = [
    "specchat",
    "specchat.errors",
    "specchat.registry",
    "specchat.settings",
    "specchat.config",
    "specchat.drafters",
    "specchat.trees",
    "specchat.acceptance",
    "specchat.controllers",
    "specchat.decoding.families",
    "specchat.engine.protocol.events",
    "specchat.engine.near.client",
    "specchat.engine.far.host",
    "specchat.engine.protocol.describe",
    "specchat.engine.near.replay",
    "specchat.cli",
    "specchat.cli.run",
    "specchat.cli.methods",
    "specchat.models.fetch",
]


def loaded_after(code: str, names: tuple[str, ...]) -> set[str]:
    """Which of these packages are loaded once the code has run."""
    report = f"\nimport sys\nprint('LOADED', *[n for n in {names!r} if n in sys.modules])"
    ended = subprocess.run(
        [sys.executable, "-c", code + report], capture_output=True, text=True, timeout=120, check=True
    )
    return set(ended.stdout.split("LOADED")[-1].split())


def modules_of(package: str) -> list[str]:
    __import__(f"specchat.{package}")
    path = sys.modules[f"specchat.{package}"].__path__
    return [f"specchat.{package}", *(m.name for m in pkgutil.walk_packages(path, f"specchat.{package}."))]


def test_nothing_on_the_engines_side_imports_textual_or_rich():
    names = [name for package in HEADLESS for name in modules_of(package)]
    assert len(names) > 40
    code = "import importlib\n" + "\n".join(f"importlib.import_module({name!r})" for name in names)
    assert loaded_after(code, ("textual", "rich", "torch")) == {"torch"}


@pytest.mark.parametrize("package", ["core", "drafters", "decoding", "engine"])
def test_a_package_that_is_imported_alone_draws_nothing(package):
    assert loaded_after(f"import specchat.{package}", ("textual", "rich")) == set()


def test_tables_client_and_commands_import_no_torch():
    code = "\n".join(f"import {name}" for name in TORCH_FREE)
    assert loaded_after(code, HEAVY) == set()


@pytest.mark.parametrize("words", [["--help"], ["run", "--help"], ["methods"], ["models", "list"]], ids=" ".join)
def test_asking_for_help_or_for_a_list_loads_nothing_heavy(words):
    code = f"""
import sys
sys.argv = ["specchat", *{words!r}]
from specchat.cli import main
try:
    main()
except SystemExit as left:
    assert not left.code, left.code
"""
    assert loaded_after(code, HEAVY) == set()


def test_help_names_every_setting():
    from specchat.settings import OPTIONS

    ended = subprocess.run(
        [sys.executable, "-m", "specchat", "run", "--help"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={**os.environ, "COLUMNS": "200"},
    )
    for name in OPTIONS:
        assert f"--{name.replace('_', '-')}" in ended.stdout


def test_the_version_is_a_version():
    assert specchat.__version__.count(".") == 2


FIRST_PICTURE = """
import gc, os, sys
sys.argv = ["specchat", "--pair", "scripted"]
from specchat.cli import main
from specchat.tui.control.engine_session import EngineSession

before = gc.get_stats()[2]["collections"]  # the import above is the test's own

async def connect(self):
    collections = gc.get_stats()[2]["collections"] - before
    print("LOADED", *[name for name in {names!r} if name in sys.modules], collections or "")
    sys.stdout.flush()
    os._exit(0)

EngineSession.connect = connect
main()
"""


def test_the_first_picture_waits_for_nothing_that_comes_later(tmp_path):
    names = (*HEAVY[:2], "pydantic", "aiohttp", "specchat.bench", "specchat.tui.bench", "specchat.cli.bench_ui")
    ended = subprocess.run(
        [sys.executable, "-c", FIRST_PICTURE.format(names=names)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={
            **os.environ,
            "SPECCHAT_HOME": str(tmp_path),
            "TEXTUAL_DRIVER": "textual.drivers.headless_driver:HeadlessDriver",
        },
    )
    assert "LOADED" in ended.stdout, ended.stderr
    assert ended.stdout.split("LOADED")[-1].split() == []
