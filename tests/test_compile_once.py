"""The tests' compiler gives what the real one would, and compiles the same sources once."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from compile_once import _FOLDER

pytestmark = pytest.mark.skipif(_FOLDER not in os.environ, reason="no C compiler is here")


def compiled(folder: Path, number: int, *options: str) -> int:
    """What a program says that was compiled from a source with this number, in a folder of its own."""
    folder.mkdir()
    (folder / "number.h").write_text(f"#define NUMBER {number}\n")
    (folder / "main.c").write_text('#include "number.h"\nint main(void) { return NUMBER; }\n')
    command = [*shlex.split(os.environ["CC"]), *options, str(folder / "main.c"), "-o", str(folder / "program")]
    subprocess.run(command, check=True)
    return subprocess.run([folder / "program"], check=False).returncode


@pytest.fixture
def counted(monkeypatch, tmp_path):
    """An empty store, and a compiler that leaves a file for each run of it."""
    runs, store, script = tmp_path / "runs", tmp_path / "store", tmp_path / "cc.py"
    runs.mkdir()
    store.mkdir()
    real = os.environ["SPECCHAT_TESTS_COMPILER"]
    script.write_text(
        "import subprocess, sys, tempfile\n"
        f"tempfile.mkstemp(dir={str(runs)!r})\n"
        f"sys.exit(subprocess.run({real} + sys.argv[1:]).returncode)\n"
    )
    monkeypatch.setenv(_FOLDER, str(store))
    monkeypatch.setenv("SPECCHAT_TESTS_COMPILER", f'["{sys.executable}", "{script}"]')
    return lambda: len(list(runs.iterdir()))


def test_the_same_sources_elsewhere_are_compiled_once(counted, tmp_path):
    assert [compiled(tmp_path / name, 7) for name in ("a", "b")] == [7, 7]
    assert counted() == 1


def test_other_sources_headers_and_options_are_compiled_anew(counted, tmp_path):
    assert compiled(tmp_path / "a", 7) == 7
    assert compiled(tmp_path / "b", 8) == 8
    assert compiled(tmp_path / "c", 8, "-O1") == 8
    assert counted() == 3


def test_what_does_not_compile_is_not_kept(counted, tmp_path):
    for _ in range(2):
        with pytest.raises(subprocess.CalledProcessError):
            compiled(tmp_path / "a", 7, "-no-such-option")
        shutil.rmtree(tmp_path / "a")
    assert counted() == 2
