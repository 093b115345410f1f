"""A library that cannot be loaded is named in one line, by every command and by an engine that ends."""

import os
import subprocess
import sys

import pytest

SAID = "libcudart.so.12: cannot open shared object file: No such file or directory"


@pytest.fixture
def specchat(tmp_path):
    """Runs a command where importing torch fails as it does without CUDA's libraries."""
    broken = tmp_path / "libraries" / "torch"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text(f"raise OSError({SAID!r})\n")
    paths = [str(broken.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    there = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "SPECCHAT_HOME": str(tmp_path / "home")}

    def run(*words):
        command = [sys.executable, "-m", "specchat", *words]
        return subprocess.run(command, env=there, capture_output=True, text=True, timeout=60)

    return run


@pytest.mark.parametrize(
    "words",
    [("run", "--pair", "scripted", "hi"), ("check",), ("bench",), ("train", "smol")],
    ids=lambda words: words[0],
)
def test_a_command_says_which_library_in_one_line(specchat, words):
    ended = specchat(*words)
    assert ended.returncode == 1
    assert f"cannot be loaded: {SAID}; installing specchat anew" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


def test_the_doctor_says_it_beside_what_it_can_still_say(specchat):
    ended = specchat("doctor")
    assert ended.returncode == 0
    assert f"✕ torch cannot be loaded: {SAID}" in ended.stdout
    assert "transformers" in ended.stdout
    assert "smol" in ended.stdout


def test_commands_that_need_no_library_work(specchat):
    assert specchat("methods").returncode == 0
