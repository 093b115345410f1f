"""The tests' compiler gives what the real one would, and compiles the same sources once."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from compile_once import _COMPILER, _FOLDER, KEPT_S, share_compiled

pytestmark = pytest.mark.skipif(_FOLDER not in os.environ, reason="no C compiler is here")


def command_for(folder: Path, number: int, *options: str) -> list[str]:
    """What compiles a program that says this number, from a source in a folder of its own."""
    folder.mkdir()
    (folder / "number.h").write_text(f"#define NUMBER {number}\n")
    (folder / "main.c").write_text('#include "number.h"\nint main(void) { return NUMBER; }\n')
    return [*shlex.split(os.environ["CC"]), *options, str(folder / "main.c"), "-o", str(folder / "program")]


def compiled(folder: Path, number: int, *options: str) -> int:
    """What that program says."""
    subprocess.run(command_for(folder, number, *options), check=True)
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


def test_two_processes_that_compile_the_same_at_once_compile_it_once(counted, tmp_path):
    with ThreadPoolExecutor() as both:
        assert list(both.map(lambda name: compiled(tmp_path / name, 7), "ab")) == [7, 7]
    assert counted() == 1


def test_a_compilation_that_is_given_up_goes_on_and_serves_the_next(counted, tmp_path, monkeypatch):
    begun, go, waits = (tmp_path / name for name in ("begun", "go", "waits.py"))
    command = json.loads(os.environ["SPECCHAT_TESTS_COMPILER"])
    waits.write_text(
        "import os, pathlib, sys, time\n"
        f"pathlib.Path({str(begun)!r}).touch()\n"
        f"while not pathlib.Path({str(go)!r}).exists():\n    time.sleep(0.01)\n"
        f"os.execv({command[0]!r}, {command!r} + sys.argv[1:])\n"
    )
    monkeypatch.setenv("SPECCHAT_TESTS_COMPILER", json.dumps([sys.executable, str(waits)]))
    process = subprocess.Popen(command_for(tmp_path / "a", 7))
    while not begun.exists():
        assert process.poll() is None
    process.kill()
    process.wait()
    go.touch()
    assert compiled(tmp_path / "b", 7) == 7
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


def test_later_runs_find_what_was_compiled_by_the_same_compiler_on_the_same_machine(monkeypatch, tmp_path):
    for name in (_FOLDER, _COMPILER, "CC"):
        monkeypatch.setenv(name, "")  # set again afterwards

    def folder(compiler: str = "cc", machine: str = "this one"):
        monkeypatch.delenv(_FOLDER)
        return share_compiled((sys.executable, "-I", "-c", f"print({compiler!r})"), tmp_path, machine)

    kept = folder()
    used, unused = kept / "used", kept / "unused"
    for file, age_s in ((used, 0.5 * KEPT_S), (unused, 2 * KEPT_S)):
        file.touch()
        os.utime(file, (time.time() - age_s,) * 2)
    assert folder() == kept
    assert used.exists()
    assert not unused.exists()
    assert len({kept, folder("another"), folder(machine="another")}) == 3
