"""A drafter is one file and one line in the table; then a flag names it, and it is assembled and held to contracts."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import specchat
from tests.mutations.fork_server import run_pytest

PACKAGE = Path(specchat.__file__).parent

FILE = '''"""Guesses that the last token comes again."""

from __future__ import annotations

import math
from collections.abc import Sequence

from specchat.core.context import Context
from specchat.core.seams import Drafter, Proposal
from specchat.core.tree import TokenTree, point
from specchat.drafters.parts import Parts
from specchat.registry import NoOptions


class Echo(Drafter):
    """The token of every node follows it once more, every other time. specchat's own."""

    def __init__(self, options: NoOptions, parts: Parts) -> None:
        self.proposer = parts.proposer

    def propose(self, tree: TokenTree, frontier: Sequence[int], width: int, context: Context) -> Proposal:
        return [[point(tree.tokens[node], math.log(0.5), self.proposer)] for node in frontier]
'''

LINE = '    Method("echo", "specchat.drafters.echo:Echo", "guesses that the last token comes again", "none"),\n'


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a package that has one drafter more."""
    folder = tmp_path_factory.mktemp("package")
    shutil.copytree(PACKAGE, folder / "specchat", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "specchat/drafters/echo.py").write_text(FILE)
    table = folder / "specchat/drafters/__init__.py"
    before, found, after = table.read_text().partition("    Method(\n")
    assert found
    table.write_text(before + LINE + found + after)
    return folder


def said(folder, *command):
    """What the program with that package prints."""
    environment = {**os.environ, "HOME": str(folder), "XDG_CONFIG_HOME": str(folder), "PYTHONPATH": str(folder)}
    arguments = [sys.executable, "-P", "-m", "specchat", *command]
    done = subprocess.run(arguments, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def test_it_is_listed_and_a_setting_names_it(folder):
    assert re.search("drafter +echo +guesses that the last token comes again", said(folder, "methods"))
    assert "wrote drafter" in said(folder, "config", "set", "drafter", "echo")
    assert "did you mean 'echo'" in said(folder, "config", "set", "drafter", "ecko")


def test_it_is_assembled_and_held_to_every_drafters_contract(folder):
    files = ("tests/contracts/test_drafter_contract.py", "tests/decoding/test_exactness.py")
    options = ["-q", "--no-header", "-p", "no:cacheprovider", "-p", "no:xdist", "-k", "echo"]
    status = run_pytest([*options, *files], folder, folder / "output")
    output = (folder / "output").read_text()
    assert status == 0, output
    passed = re.search(r"(\d+) passed", output)
    assert passed is not None
    assert int(passed[1]) > 10
