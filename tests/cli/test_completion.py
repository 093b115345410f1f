"""Shell completion knows names: of pairs, methods, settings, models."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from specchat.drafters import DRAFTERS

PROGRAM = Path(sys.executable).with_name("specchat")


def test_help_names_methods_choices_and_defaults() -> None:
    environment = {**os.environ, "COLUMNS": "300"}
    done = subprocess.run(
        [sys.executable, "-m", "specchat", "--help"], env=environment, capture_output=True, text=True, timeout=60
    )
    assert f"what guesses the next tokens ({len(DRAFTERS)} of them, listed by specchat methods; " in done.stdout
    assert "which guesses get a place in the tree (chain, expansion, " in done.stdout
    assert "default chain)" in done.stdout
    assert "guesses for one place, at most (1 to 64; default 2)" in done.stdout


@pytest.mark.skipif(not PROGRAM.exists(), reason="the command is not installed beside this Python")
@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("specchat --pair scr", "scripted"),
        ("specchat --drafter su", "suffix"),
        ("specchat run --policy ch", "chain"),
        ("specchat run --set prompt_lookup.max", "prompt_lookup.max_ngram="),
        ("specchat models pull scr", "scripted"),
        ("specchat config set temp", "temperature"),
        ("specchat config get app.th", "app.theme"),
    ],
)
def test_names_are_completed(line: str, offered: str) -> None:
    environment = {
        **os.environ, "_SPECCHAT_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(line.count(" ")),
    }  # fmt: skip
    done = subprocess.run([PROGRAM], env=environment, capture_output=True, text=True, timeout=60, check=False)
    names = done.stdout.split()
    assert offered in names
    assert all(name.startswith(line.rpartition(" ")[2]) for name in names)
