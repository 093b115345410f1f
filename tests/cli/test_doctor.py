"""The doctor names what there is, and measures and draws what passes cost."""

import importlib.util
import shutil

import pytest
import torch
from pretended_device import pretended
from typer.testing import CliRunner

from specchat.cli import app

run = CliRunner().invoke


def test_it_names_versions_machine_kernels_and_pairs():
    done = run(app, ["doctor"])
    assert done.exit_code == 0
    for word in ("torch", "threads", "4 and 8 bits", "smol", "scripted"):
        assert word in done.output


def test_it_says_of_a_card_what_its_passes_lack():
    with pretended():
        done = run(app, ["doctor"])
    assert done.exit_code == 0
    assert "passes are launched kernel by kernel: " in " ".join(done.output.split())


def test_it_says_that_a_card_is_not_used_where_torch_is_a_build_for_processors(monkeypatch):
    find = shutil.which
    monkeypatch.setattr(shutil, "which", lambda name, *more: "here" if name == "nvidia-smi" else find(name, *more))
    for cuda, expected in ((None, True), ("12.8", False)):
        monkeypatch.setattr(torch.version, "cuda", cuda)
        told = " ".join(run(app, ["doctor"]).output.split())
        assert ("this machine has an NVIDIA card, and torch" in told) == expected


def test_costs_are_curves_of_rows_and_context():
    done = run(app, ["doctor", "--costs", "--pair", "scripted"])
    assert done.exit_code == 0
    assert "plain decoding, by context" in done.output
    assert "verification, by rows" in done.output
    assert " 32 " in done.output


@pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="matplotlib comes with the extra `bench`")
def test_costs_can_be_drawn(tmp_path):
    picture = tmp_path / "costs.svg"
    done = run(app, ["doctor", "--costs", "--pair", "scripted", "--plot", str(picture)])
    assert done.exit_code == 0
    assert "scripted · scripted" in picture.read_text()


def test_a_plot_that_cannot_be_is_refused_before_anything_is_measured(tmp_path):
    done = run(app, ["doctor", "--plot", str(tmp_path / "costs.txt")])
    assert done.exit_code != 0
    assert ".png" in str(done.exception)
