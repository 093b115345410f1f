"""Trained drafters on the command line and in the list of pairs: listed, checked, removed."""

from __future__ import annotations

import pytest
from contracts.trained_folders import trained_folder
from trained_drafter_files import TARGET_SHA, TENSORS, entry, flip_last_byte, home_of_drafters, made_here, packaged, run

from specchat.cli.pair_states import known_pairs
from specchat.config.drafter_states import DrafterStateFile
from specchat.config.trained_drafters import WEIGHTS
from specchat.errors import UsageError
from specchat.tui.state.pair_list import PairListState, pair_lines


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    with home_of_drafters(tmp_path, monkeypatch):
        yield tmp_path


def test_the_list_shows_every_drafter_with_what_is_wrong_with_it():
    made_here()
    (made_here("torn").weights).write_bytes(b"x")
    said = run("list").output
    assert "trained drafter" in said
    screen_line = next(line for line in said.splitlines() if line.startswith("mine"))
    assert screen_line.split() == ["mine", "●", "ready", *screen_line.split()[3:5], "trained", "tiny", "Apache-2.0"]
    assert "✕ torn:" in said


def test_a_drafter_made_here_is_checked_and_removed_by_name():
    folder = made_here().folder
    assert "is intact" in run("check", "mine").output
    flip_last_byte(folder / WEIGHTS)
    assert "has changed" in str(run("check", "mine").exception)
    assert isinstance(run("remove", "mine").exception, UsageError)
    assert "freed" in run("remove", "mine", "--yes").output
    assert not folder.exists()


def test_a_shipped_drafter_is_not_removed(home):
    trained_folder(home / "shipped" / "with-specchat", TENSORS, "trained", TARGET_SHA)
    assert "came with specchat" in str(run("remove", "with-specchat", "--yes").exception)
    assert "ready at" in run("pull", "with-specchat").output


def test_the_pairs_name_the_drafters_trained_for_their_target(home):
    made_here("works")
    made_here("torn").weights.write_bytes(b"x")
    source = trained_folder(home / "elsewhere", TENSORS, "trained", TARGET_SHA)
    entry(source.folder, packaged(home, source.folder))
    pairs = {pair.name: pair for pair in known_pairs()}
    words = {said.split()[0]: said for said in pairs["scripted"].trained}
    assert words["works"] == "works (trained)"
    assert words["named"] == "named (trained, specchat models pull named)"
    assert words["torn"].startswith("torn (cannot be used: ")
    lines, _ = pair_lines(PairListState([pairs["scripted"]]), 0, 0, 200, 12, lambda key, text: text)
    assert "trained drafters: " in "".join(text for line in lines for text, _ in line)
    assert pairs["smol"].trained == ()


def test_what_a_drafter_has_learnt_is_listed_and_erased_by_name():
    for target in ("ab" * 32, "cd" * 32):
        DrafterStateFile.of(target, "hydra").write(b"learnt")
    assert "hydra has learnt" in run("list").output
    assert isinstance(run("erase-state", "hydra").exception, UsageError)
    assert "is gone" in run("erase-state", "hydra", "--yes").output
    assert "hydra has learnt" not in run("list").output
    assert "no drafter called 'hydra' has learnt anything" in str(run("erase-state", "hydra").exception)
