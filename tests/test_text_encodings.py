"""Text is read and written in an encoding that the source names: that of the locale differs between machines."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys

import pytest
from readme_tables import ROOT

_FILE_METHODS = ("read_text", "write_text")

_OF_TEXTS = re.compile(r"read_text|write_text|open|text\s*=|universal_newlines")
"""What a source has that calls any of these; the others are not parsed."""


def unnamed(source: str) -> list[int]:
    """The lines of calls that leave the encoding of a text to the locale."""
    if not _OF_TEXTS.search(source):
        return []
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    return [call.lineno for call in calls if _decodes(call) and not _named(call)]


def _named(call: ast.Call) -> bool:
    return any(keyword.arg in ("encoding", "errors") for keyword in call.keywords)


def _decodes(call: ast.Call) -> bool:
    """Whether the call has to do with text. Its `open` counts where it is Python's own, or names a mode of text."""
    if any(keyword.arg in ("text", "universal_newlines") for keyword in call.keywords):
        return isinstance(call.func, ast.Attribute) and call.func.attr in ("run", "Popen", "check_output")
    if isinstance(call.func, ast.Attribute) and call.func.attr in _FILE_METHODS:
        return True
    own = isinstance(call.func, ast.Name) and call.func.id == "open"
    method = isinstance(call.func, ast.Attribute) and call.func.attr in ("open", "fdopen")
    if not own and not method:
        return False
    mode = "r" if own else ""
    for word in [*call.args[:2], *(keyword.value for keyword in call.keywords if keyword.arg == "mode")]:
        if isinstance(word, ast.Constant) and isinstance(word.value, str) and set(word.value) <= set("rwaxbt+"):
            mode = word.value
    return bool(mode) and "b" not in mode


@pytest.mark.parametrize(
    "line",
    [
        "file.read_text()", "file.write_text('5')", "open(file)", "open(file, 'w')", "file.open('r')",
        "os.fdopen(number, 'w')", "subprocess.run(command, text=True)",
    ],
)  # fmt: skip
def test_a_call_that_leaves_the_encoding_to_the_locale_is_noticed(line: str) -> None:
    assert unnamed(line) == [1]


@pytest.mark.parametrize(
    "line",
    [
        "file.read_text(encoding='utf-8')", "open(file, 'rb')", "file.open('wb')", "os.open(file, os.O_RDONLY)",
        "self.open(id)", "subprocess.run(command, errors='replace')", "widget(text=True)",
    ],
)  # fmt: skip
def test_other_calls_are_not(line: str) -> None:
    assert unnamed(line) == []


def test_the_program_leaves_no_encoding_to_the_locale() -> None:
    files = sorted((ROOT / "specchat").rglob("*.py"))
    found = {str(file.relative_to(ROOT)): unnamed(file.read_text(encoding="utf-8")) for file in files}
    assert {name: lines for name, lines in found.items() if lines} == {}


def test_a_pair_loads_where_the_locale_knows_ascii_alone() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "specchat", "run", "--pair", "scripted", "--max-tokens", "5", "Hello"],
        capture_output=True, timeout=120, stdin=subprocess.DEVNULL, check=False,
        env={**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    )  # fmt: skip
    assert (ended.returncode, ended.stderr) == (0, b"")
    assert ended.stdout.strip()
