"""What is installed is complete: a wheel carries its data and works from any folder, far from the source tree."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from specchat.config.directories import shipped_file

ROOT = Path(__file__).parents[1]

SHIPPED = ("models.toml", "assets/demo.jsonl")

Run = Callable[..., str]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that `pip wheel` makes of this source tree."""
    folder = tmp_path_factory.mktemp("wheel")
    _pip("wheel", str(ROOT), "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder))
    (built,) = folder.glob("specchat-*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Runs Python code in a folder of its own, where `specchat` is the installed wheel and nothing else."""
    place, elsewhere = tmp_path_factory.mktemp("installed"), tmp_path_factory.mktemp("elsewhere")
    _pip("install", str(wheel), "--no-deps", "--no-index", "--target", str(place))

    def run(code: str) -> str:
        environment = {**os.environ, "PYTHONPATH": str(place), "SPECCHAT_HOME": str(elsewhere / "home")}
        return _run([sys.executable, "-c", code], cwd=elsewhere, env=environment)

    assert run("import specchat; print(specchat.__file__)").startswith(str(place))
    return run


def _pip(*arguments: str) -> None:
    _run([sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments], cwd=ROOT)


def _run(command: list[str], **where: object) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, **where)  # type: ignore[call-overload]
    assert done.returncode == 0, done.stdout + done.stderr
    return str(done.stdout)


def test_the_wheel_carries_every_file_of_the_package(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    source = [path for path in (ROOT / "specchat").rglob("*") if path.is_file() and path.suffix != ".pyc"]
    assert {path.relative_to(ROOT).as_posix() for path in source} <= names
    assert {"specchat/py.typed", "specchat/tui/app.tcss"} <= names


def test_the_wheel_carries_its_data_byte_for_byte(wheel: Path) -> None:
    for name in SHIPPED:
        assert zipfile.ZipFile(wheel).read(f"specchat/_data/{name}") == (ROOT / name).read_bytes()


def test_the_wheel_carries_the_licence_and_nothing_besides(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)
    assert {name.split("/")[0].split("-")[0] for name in names} == {"specchat"}


def test_a_source_tree_finds_its_data() -> None:
    for name in SHIPPED:
        assert shipped_file(name) == ROOT / name


def test_an_installed_wheel_finds_its_data(installed: Run) -> None:
    code = "from specchat.config.directories import shipped_file; print(shipped_file({!r}).read_bytes() != b'')"
    assert [installed(code.format(name)) for name in SHIPPED] == ["True\n", "True\n"]


def test_an_installed_wheel_knows_its_pairs_from_any_folder(installed: Run) -> None:
    assert installed("from specchat.config import load_catalog; print('smol' in load_catalog().pairs)") == "True\n"


def test_an_installed_wheel_runs_its_command(installed: Run) -> None:
    code = "import sys; sys.argv = ['specchat', 'methods']; from specchat.cli import main; main()"
    assert "prompt_lookup" in installed(code)


def test_an_installed_wheel_finds_the_apps_style_sheet(installed: Run) -> None:
    code = (
        "import inspect, pathlib; from specchat.tui.app import SpecchatApp as App; "
        "print(pathlib.Path(inspect.getfile(App)).with_name(App.CSS_PATH).is_file())"
    )
    assert installed(code) == "True\n"


def test_the_server_the_browser_and_gifs_need_no_extra() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    assert {*extras["serve"], *extras["web"], *extras["gif"]} <= set(project["dependencies"])
