"""`pytest` uses all cores, runs files of several kinds beside each other, and survives a crash."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from distribution import compile_share, drives_terminal, wants_workers

TESTS = Path(__file__).parent

HOOKS = """
from distribution import pytest_xdist_make_scheduler
"""

LOGGED = """
import os, pathlib, pytest, time
@pytest.mark.parametrize("number", range({count}))
def test_logged(number):
    time.sleep(0.05)
    with open("log", "a") as log:
        print("{name}", os.getpid(), file=log)
"""

CRASHING = """
import os, time
def test_before(): pass
def test_crash():
    time.sleep(0.5)  # until the report of the test before has been sent
    os._exit(3)
def test_after(): pass
"""

CRASHING_LATER = """
import os, pathlib, time
def test_crash_later():
    while not pathlib.Path("collecting").exists():
        time.sleep(0.05)
    os._exit(3)
"""

COLLECTING = """
import os, pathlib, time
def pytest_collection():
    if os.environ.get("PYTEST_XDIST_WORKER") == "gw2":  # takes the place of the first that crashed
        pathlib.Path("collecting").touch()
        time.sleep(1)
"""


def run_pytest(folder: Path, files: dict[str, str], *options: str) -> str:
    """What pytest prints when it runs these files with hooks of this project."""
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = e2e: drives a terminal\n")
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "hooks.py").write_text(HOOKS)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(TESTS)])}
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # most of a second for each worker
    environment.pop("PYTEST_ADDOPTS", None)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "hooks", *options, str(folder)]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120).stdout


def run_distributed(folder: Path, files: dict[str, str], workers: int = 3) -> str:
    """What pytest prints when workers run these files with the scheduler of this project."""
    return run_pytest(folder, files, "-p", "xdist", "-n", str(workers), "--dist", "loadfile")


def terminal(text: str) -> str:
    return "import pytest\npytestmark = pytest.mark.e2e\n" + text


def test_workers_begin_with_files_of_each_kind(tmp_path: Path) -> None:
    files = {f"test_{name}.py": terminal(LOGGED.format(name=name, count=8)) for name in "gh"}
    files |= {f"tests/tui/test_{name}.py": LOGGED.format(name=name, count=8) for name in "def"}
    files |= {f"test_{name}.py": LOGGED.format(name=name, count=4) for name in "abc"}
    assert "53 passed" in run_distributed(tmp_path, files | {"test_single.py": "def test_single(): pass"}, 4)
    first: dict[str, str] = {}
    for line in (tmp_path / "log").read_text().splitlines():
        name, worker = line.split()
        first.setdefault(worker, name)
    kinds = ["terminal" if name in "gh" else "app" if name in "def" else "other" for name in first.values()]
    assert sorted(kinds) == ["app", "app", "other", "terminal"]


@pytest.mark.parametrize(("workers", "files"), [(1, "ab"), (3, "ab"), (3, "abcdef")])
def test_files_of_one_kind_use_all_workers(workers: int, files: str, tmp_path: Path) -> None:
    texts = {f"test_{name}.py": terminal(LOGGED.format(name=name, count=4)) for name in files}
    assert f"{4 * len(files)} passed" in run_distributed(tmp_path, texts, workers)
    used = {line.split()[1] for line in (tmp_path / "log").read_text().splitlines()}
    assert len(used) == min(workers, len(files))


@pytest.mark.parametrize("workers", [2, 3])
def test_a_crashed_worker_fails_one_test_and_the_others_still_run(workers: int, tmp_path: Path) -> None:
    files = {f"test_{name}.py": LOGGED.format(name=name, count=4) for name in "bcd"}
    files |= {"test_crash.py": CRASHING, "test_crash_e2e.py": terminal(CRASHING)}
    assert "2 failed, 16 passed" in run_distributed(tmp_path, files, workers)


def test_a_worker_may_crash_while_another_one_is_replaced(tmp_path: Path) -> None:
    files = {f"test_{name}.py": LOGGED.format(name=name, count=4) for name in "bcd"}
    files |= {"test_crash.py": CRASHING, "test_crash_e2e.py": terminal(CRASHING_LATER), "conftest.py": COLLECTING}
    assert "2 failed, 14 passed" in run_distributed(tmp_path, files, workers=2)


def test_the_files_that_drive_a_terminal_are_known() -> None:
    marked = {path.name for path in TESTS.rglob("test_*.py") if drives_terminal(path)}
    assert {path.name for path in (TESTS / "e2e").glob("test_*.py")} <= marked
    assert "test_readme.py" not in marked


def config(arguments: list[str], **options: Any) -> Any:
    usual = {"numprocesses": None, "dist": "no", "tx": [], "usepdb": False, "trace": False, "capture": "fd"}
    usual |= {"collectonly": False, "keyword": "", "markexpr": ""}
    return SimpleNamespace(args=arguments, option=SimpleNamespace(**usual | options))


@pytest.mark.parametrize(
    ("arguments", "options", "wanted"),
    [
        ([str(TESTS)], {}, True),
        ([str(TESTS)], {"markexpr": "not real"}, True),
        ([str(TESTS)], {"markexpr": "e2e"}, False),
        ([str(TESTS)], {"numprocesses": 0}, False),
        ([str(TESTS)], {"usepdb": True}, False),
        ([str(TESTS)], {"capture": "no"}, False),
        ([str(TESTS)], {"keyword": "exact"}, False),
        ([__file__], {}, False),
        ([f"{__file__}::test_one"], {}, False),
    ],
    ids=lambda value: re.sub(r"^.*/", "", str(value)),
)
def test_all_cores_are_used_unless_the_call_says_otherwise(
    arguments: list[str], options: dict[str, Any], wanted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    assert wants_workers(config(arguments, **options)) is wanted


def test_each_file_is_compiled_by_one_worker_and_pytest_reads_that(
    tmp_path: Path, pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    files = [Path(f"test_{number}.py") for number in range(4)]
    for file in files:
        file.write_text("def value(): return 1", encoding="utf-8")
    told = []
    for worker in range(2):
        config: Any = SimpleNamespace(
            workerinput={"workerid": f"gw{worker}", "workercount": 2},
            stash=pytestconfig.stash,
            getini=pytestconfig.getini,
        )
        compile_share(config, [], files)
        told.append({file.name.split(".")[0] for file in (tmp_path / "__pycache__").iterdir()})
    assert told == [{"test_0", "test_2"}, {"test_0", "test_1", "test_2", "test_3"}]

    changed = files[0].stat()
    files[0].write_text("def value(): return 2", encoding="utf-8")
    os.utime(files[0], ns=(changed.st_atime_ns, changed.st_mtime_ns))
    hook = pytestconfig.pluginmanager.rewrite_hook
    spec = importlib.util.spec_from_file_location("test_0", files[0].resolve(), loader=hook)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    hook.exec_module(module)  # type: ignore[attr-defined]  # of the interface of a loader
    assert module.value() == 1
    assert module.value.__code__.co_filename == str(tmp_path / "test_0.py")
