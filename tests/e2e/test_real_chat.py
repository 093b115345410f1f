"""A chat with the real SmolLM2 in a real terminal, from an empty home to a reply that is there again."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from real_weights import HOME, fetched

from tests.e2e.terminal import FIGURES, Terminal

pytestmark = [pytest.mark.e2e, pytest.mark.real, pytest.mark.usefixtures("preloaded")]

ENTER, ESCAPE, CTRL_C = "\r", "\x1b", "\x03"
QUESTION = "What is the capital of France?"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A user who has nothing but the weights."""
    fetched("smollm2-135m-instruct")
    home = tmp_path / "home"
    (home / "cache").mkdir(parents=True)
    for kept in ("models", "converted", "native"):
        if (HOME / "cache" / kept).exists():
            (home / "cache" / kept).symlink_to(HOME / "cache" / kept)
    return home


def test_a_new_user_asks_reads_what_run_writes_leaves_and_goes_on(home: Path) -> None:
    greedy = ["--temperature", "0", "--max-tokens", "24"]
    said = subprocess.run(
        [sys.executable, "-m", "specchat", "run", *greedy, QUESTION],
        env={**os.environ, "SPECCHAT_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    ).stdout
    assert len(said.split()) > 3

    def answered(text: str) -> bool:
        return re.search(FIGURES, " ".join(text.split())) is not None

    for arguments in (greedy, ["-c"]):
        chat = Terminal(arguments, 58, 24, SPECCHAT_HOME=str(home))  # no room for a tree beside the text
        try:
            if arguments is greedy:
                chat.until("Esc")
                chat.type(ESCAPE)  # the tour
            chat.until("● smol")
            if arguments is greedy:
                chat.type(QUESTION + ENTER)
            text = chat.until(answered)
            assert QUESTION in text
            assert " ".join(said.split()) in " ".join(text.split())
            chat.type(CTRL_C)
            chat.type(CTRL_C)
            assert chat.gone() == 0
        finally:
            chat.close()
