"""Where specchat keeps things: directories that are private, and files that come with it."""

from __future__ import annotations

import os
import stat

import pytest

from specchat import config
from specchat.config import directories
from specchat.errors import ConfigError


def test_one_variable_moves_all_directories_and_nothing_is_made_by_asking(home):
    assert (config.config_dir(), config.cache_dir(), config.state_dir()) == (
        home / "config",
        home / "cache",
        home / "state",
    )
    assert not home.exists()


def test_without_the_variable_the_platform_decides(monkeypatch):
    monkeypatch.delenv("SPECCHAT_HOME")
    assert config.cache_dir().name == "specchat"
    assert config.cache_dir() != config.config_dir()


def test_a_private_directory_is_its_owners_alone_whatever_the_umask(home):
    before = os.umask(0)
    try:
        path = config.private_dir(home / "deep" / "er")
    finally:
        os.umask(before)
    assert [stat.S_IMODE(p.stat().st_mode) for p in (home, home / "deep", path)] == [0o700] * 3


def test_a_directory_that_was_open_is_closed(home):
    (home / "cache").mkdir(parents=True)
    (home / "cache").chmod(0o755)
    assert stat.S_IMODE(config.private_dir(home / "cache").stat().st_mode) == 0o700


@pytest.mark.parametrize("place", ["specchat/_data/assets/demo.jsonl", "assets/demo.jsonl"])
def test_a_shipped_file_is_found_in_a_wheel_and_in_a_source_tree(tmp_path, monkeypatch, place):
    monkeypatch.setattr(directories, "__file__", str(tmp_path / "specchat" / "config" / "directories.py"))
    (tmp_path / place).parent.mkdir(parents=True)
    (tmp_path / place).touch()
    assert directories.shipped_file("assets/demo.jsonl") == tmp_path / place


def test_a_file_the_installation_lacks_is_named():
    with pytest.raises(ConfigError, match=r"'nothing\.toml'"):
        directories.shipped_file("nothing.toml")
