"""Every method has an edit that breaks it, and the tests named beside the edit turn red."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

import specchat
from specchat.decoding.families import methods
from tests.mutations.fork_server import run_pytest
from tests.mutations.mutation import Mutation
from tests.mutations.table import MUTATIONS

PACKAGE = Path(specchat.__file__).parent

SLOW = bool(os.environ.get("SPECCHAT_SLOW"))
"""Without it one row stands for all slow ones, and is skipped: every worker would collect hundreds."""


def run_tests(folder: Path, tests: tuple[str, ...]) -> tuple[int, str]:
    """pytest's exit status and output for tests of this checkout on the package that lies in another folder."""
    options = ["-x", "-q", "--no-header", "-p", "no:cacheprovider", "-p", "no:xdist"]
    output = folder / "output"
    return run_pytest([*options, *tests], folder, output), output.read_text()


def copied(folder: Path, mutation: Mutation | None) -> Path:
    """The package in a folder of its own, with one edit."""
    shutil.copytree(PACKAGE, folder / "specchat")  # with what is compiled of it, which knows its source by its time
    shutil.copy(PACKAGE.parent / "models.toml", folder)
    if mutation is not None:
        file, text = mutation.edited(PACKAGE)
        (folder / "specchat" / file.relative_to(PACKAGE)).write_text(text)
    return folder


def params(quick: bool) -> list:
    marks = () if quick else (pytest.mark.slow,)
    return [
        pytest.param(mutation, id=f"{mutation.method}: {mutation.what}", marks=marks)
        for mutation in MUTATIONS
        if mutation.quick == quick
    ]


SLOW_EDITS = params(quick=False) if SLOW else [pytest.param(None, id="slow edits", marks=pytest.mark.slow)]


def test_every_edit_finds_its_place_and_leaves_a_file_that_compiles():
    for mutation in MUTATIONS:
        file, text = mutation.edited(PACKAGE)
        assert text != file.read_text(), mutation.what
        if file.suffix == ".py":
            compile(text, file, "exec")


@pytest.mark.timeout(900)
@pytest.mark.parametrize("mutation", [*params(quick=True), *SLOW_EDITS])
def test_the_tests_notice_an_edit_that_breaks_the_method(mutation, tmp_path):
    status, output = run_tests(copied(tmp_path, mutation), mutation.tests)
    assert status == 1, f"some test must fail, and none stumble:\n{output}"


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "tests", sorted({mutation.tests for mutation in MUTATIONS}) if SLOW else [("slow",)], ids=" ".join
)
def test_without_an_edit_the_same_tests_pass(tests, tmp_path):
    status, output = run_tests(copied(tmp_path, None), tests)
    assert status == 0, output


def test_every_method_of_every_table_has_an_edit():
    needed = {f"{family} {method.name}" for family, method in methods()} | {"pruning"}
    assert needed <= {mutation.method for mutation in MUTATIONS}
    others = {
        "chats",
        "drawing in C",
        "infilling",
        "layers in C",
        "learning",
        "lens",
        "library",
        "loop mirror",
        "loop overlap",
        "loop pearl",
        "prices",
        "prompt cache",
        "recurrent layers",
        "reference",
        "round",
        "serving",
        "several controllers",
        "several draft models",
        "trained draft model",
        "training",
        "training draft_model",
        "truncation",
    }
    assert {mutation.method for mutation in MUTATIONS} - needed <= others
