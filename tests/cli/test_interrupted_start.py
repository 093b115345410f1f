"""Ctrl+C while the program is still being imported."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib

import pytest
from readme_tables import ROOT

INTERRUPTED = """
import os, runpy, signal, sys

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it

class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == "typer":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupts())
sys.argv = ["specchat", "--version"]
"""
MODULE, _, FUNCTION = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["scripts"][
    "specchat"
].partition(":")


@pytest.mark.skipif(os.name == "nt", reason="a process cannot interrupt itself there")
@pytest.mark.parametrize(
    "start", ["runpy.run_module('specchat', run_name='__main__')", f"from {MODULE} import {FUNCTION}; {FUNCTION}()"]
)
def test_ctrl_c_while_modules_are_imported_ends_without_a_traceback(start: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", INTERRUPTED + start], capture_output=True, timeout=60, check=False,
        cwd=ROOT, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, b"", b"")
