"""What a command says before any model is loaded, and what its first picture waits for."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import specchat


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


def test_paragraphs_of_help_are_wrapped_at_the_width_of_the_terminal():
    for words in (["train"], ["models", "add"]):
        said = subprocess.check_output(
            [sys.executable, "-m", "specchat", *words, "--help"], text=True, env={**os.environ, "COLUMNS": "80"}
        )
        about = said.partition("Usage:")[2].partition("╭")[0].partition("\n")[2]
        for paragraph in re.split(r"\n\s*\n", about.strip()):
            *full, _ = [line.strip() for line in paragraph.splitlines()]
            assert all(len(line) > 60 for line in full), paragraph


def test_help_does_not_list_every_drafter_before_the_settings_used_most():
    ended = subprocess.run(
        [sys.executable, "-m", "specchat", "--help"],
        capture_output=True, text=True, timeout=60, check=True, env={**os.environ, "COLUMNS": "200"},
    )  # fmt: skip
    at = [
        re.search(f"--{name}[, ]", ended.stdout).start()
        for name in ("pair", "temperature", "max-tokens", "drafter", "policy")
    ]
    assert at == sorted(at)
    assert "token_recycling" not in ended.stdout
    assert "listed by specchat methods" in " ".join(ended.stdout.replace("│", " ").split())


def test_the_version_is_a_version():
    assert specchat.__version__.count(".") == 2


FIRST_PICTURE = """
import gc, os, sys
sys.argv = ["specchat", "--pair", "scripted"]
from specchat.cli import main
from specchat.tui.services.engine_session import EngineSession

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
    names = (
        "torch",
        "transformers",
        "pydantic",
        "aiohttp",
        "specchat.bench",
        "specchat.tui.bench",
    )
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


HELP = """
import sys
sys.argv = ["specchat", "--help"]
from specchat.cli import main
try:
    main()
except SystemExit:
    print("LOADED", *[name for name in sys.modules if name in {names!r}])
"""


def test_help_imports_no_server_no_event_loop_and_no_part_that_a_command_needs():
    names = (
        "asyncio", "msgspec", "torch", "textual", "uvicorn", "starlette", "specchat.serve", "specchat.engine.client",
        "specchat.engine.server", "specchat.tui", "specchat.bench", "specchat.training", "specchat.config",
    )  # fmt: skip
    program = HELP.format(names=names)
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert "Usage: specchat" in ended.stdout
    assert ended.stdout.split("LOADED")[-1].split() == []
