"""Saving settings: what goes where, what survives, what is never written; and which of several values wins."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from threading import Thread

import pytest

from specchat.config import (
    config_dir,
    load_catalog,
    private_dir,
    settings_of,
    shipped_settings,
    toml_editing,
    user_settings,
    users_config,
    users_models,
)
from specchat.config.kept_files import locked
from specchat.config.settings_saving import save, set_all_for_pair, set_in, start_with, unset
from specchat.config.toml_editing import Document, change_file, put
from specchat.engine.protocol.describe import settings_message
from specchat.errors import ConfigError, UsageError


def write(file: Path, text: str) -> None:
    private_dir(config_dir())
    file.write_text(text, encoding="utf-8")


def start(pair: str = "smol") -> dict:
    return settings_message(settings_of(load_catalog().pair(pair)))


def save_changed(changes: dict, pair: str = "smol", *, into_pair: bool = False) -> list:
    return save(pair, {**start(pair), **changes}, into_pair=into_pair)


# ------------------------------------------------------------------------------------------------ who wins


def test_what_the_user_wrote_wins_and_for_one_pair_wins_over_for_all():
    pair = load_catalog().pair("smol")
    assert settings_of(pair) == shipped_settings(pair)
    write(users_config(), "[settings]\nwidth = 3\ndepth = 3\n")
    write(users_models(), "[pairs.smol.defaults]\ndepth = 4\n")
    found = settings_of(load_catalog().pair("smol"))
    assert (found.width, found.depth, found.nodes) == (3, 4, pair.defaults["nodes"])
    assert found.drafter == pair.defaults["drafter"]
    assert settings_of(load_catalog().pair("smol"), {"depth": 5}).depth == 5


def test_options_of_methods_from_several_places_stand_together():
    write(users_config(), '[settings.method_options]\n"suffix.depth" = 9\n"suffix.factor" = 2\n')
    write(users_models(), "[pairs.smol.defaults.method_options]\nsuffix.depth = 5\n")
    assert settings_of(load_catalog().pair("smol")).options_for("suffix") == {"depth": 5, "factor": 2}


def test_an_entry_without_a_target_tunes_the_shipped_pair_and_keeps_the_rest():
    write(users_models(), "[pairs.qwen-coder.defaults]\ndepth = 3\n")
    pair = load_catalog().pair("qwen-coder")
    assert pair.draft == "qwen2.5-coder-0.5b-instruct"
    assert pair.summary
    assert (dict(pair.own), pair.yours) == ({"depth": 3}, False)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[pairs.smoll.defaults]\ndepth = 3\n", ["[pairs.smoll] target is missing", "did you mean 'smol'"]),
        ('[pairs.smol]\ndraft = "scripted"\n', ["line 2", "draft needs a target"]),
    ],
)
def test_an_entry_without_a_target_can_do_nothing_else(text, words):
    write(users_models(), text)
    with pytest.raises(ConfigError) as error:
        load_catalog()
    for word in words:
        assert word in str(error.value)


# ----------------------------------------------------------------------------------------------- what goes where


def test_sampling_is_saved_for_every_pair_and_speculation_for_this_one():
    saved = save_changed({"temperature": 0.7, "width": 4, "method_options": {"suffix.depth": 12}})
    assert [(one.file, one.table, one.written) for one in saved] == [
        (users_config(), "settings", ("temperature",)),
        (users_models(), "pairs.smol.defaults", ("width", "suffix.depth")),
    ]
    assert start()["temperature"] == start("qwen-coder")["temperature"] == 0.7
    assert (start()["width"], start("qwen-coder")["width"]) == (4, 3)
    assert start()["method_options"]["suffix.depth"] == 12
    assert "suffix.depth" not in start("qwen-coder").get("method_options", {})


def test_saved_into_the_pair_everything_is_its_own():
    (saved,) = save_changed({"temperature": 0.9, "stop": ["END"], "depth": 3}, into_pair=True)
    assert saved.file == users_models()
    assert (start()["temperature"], start()["stop"]) == (0.9, ["END"])
    assert start("qwen-coder")["temperature"] == 0.7
    assert not users_config().exists()


def test_what_a_pair_has_of_its_own_is_saved_there_because_it_would_hide_the_general_value():
    save_changed({"temperature": 0.7}, into_pair=True)
    (saved,) = save_changed({"temperature": 0.9})
    assert saved.file == users_models()
    assert start()["temperature"] == 0.9


def test_saving_twice_writes_nothing_the_second_time():
    assert save_changed({"temperature": 0.7, "width": 4})
    before = (users_config().read_text(), users_models().read_text())
    assert save_changed({}) == []
    assert (users_config().read_text(), users_models().read_text()) == before


def test_a_value_that_is_back_to_what_was_shipped_is_taken_out_of_the_file():
    shipped = start()
    save_changed({"temperature": 0.7, "top_p": 0.8, "width": 4})
    general, narrow = save_changed({"temperature": shipped["temperature"], "width": shipped["width"]})
    assert (general.removed, narrow.removed) == (("temperature",), ("width",))
    assert "temperature" not in users_config().read_text()
    assert "top_p = 0.8" in users_config().read_text()
    assert users_models().read_text().strip() == ""


def test_the_pair_to_start_with_is_a_choice_of_its_own():
    assert save_changed({}, "qwen-coder") == []
    assert start_with("qwen-coder").written == ("pair",)
    assert user_settings() == {"pair": "qwen-coder"}
    assert start_with("smol").removed == ("pair",)
    assert user_settings() == {}
    with pytest.raises(UsageError, match="did you mean 'smol'"):
        start_with("smoll")


def test_what_was_saved_is_said_with_file_table_and_keys():
    (saved,) = save_changed({"temperature": 0.7, "seed": 3})
    assert saved.line() == f"temperature, seed in {users_config()} [settings]"


# ---------------------------------------------------------------------------------------------- what survives


def test_comments_and_order_survive():
    text = "# mine\n\n[settings] # all pairs\nseed = 3  # lucky\n\n# keys below\n[keys]\nhelp = 'f1'\n"
    write(users_config(), text)
    set_in("settings", "top_p", 0.9)
    assert users_config().read_text() == text.replace("# lucky\n", "# lucky\ntop_p = 0.9\n")
    unset("top_p")
    assert users_config().read_text() == text


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("[pairs.smol]\ndefaults = { width = 3 } # three\n", "# three"),
        ("[pairs.smol.defaults]\nmethod_options.suffix = { depth = 3 }\n", "suffix = { depth = 5"),
        ('[pairs.smol.defaults.method_options]\n"suffix.depth" = 3\n', '"suffix.depth" = 5'),
        ("pairs.smol.defaults.method_options.suffix.depth = 3\n", "suffix.depth = 5"),
    ],
)
def test_however_a_table_was_written_it_is_found_and_changed_there(text, left):
    write(users_models(), text)
    set_all_for_pair("smol", {"suffix.depth": 5})
    set_all_for_pair("smol", {"nodes": 5})
    assert left in users_models().read_text()
    assert start()["method_options"]["suffix.depth"] == 5
    assert start()["nodes"] == 5
    unset("suffix.depth", "smol")
    assert "suffix.depth" not in start()["method_options"]


def test_a_file_that_cannot_be_read_is_told_and_left_alone():
    write(users_config(), "[settings\n")
    with pytest.raises(ConfigError, match="line 1"):
        set_in("settings", "seed", 3)
    assert users_config().read_text() == "[settings\n"


def test_a_value_that_could_not_be_read_again_is_not_written():
    write(users_config(), "[settings]\nseed = 3\n")
    with pytest.raises(ConfigError, match="0, or 1e-06 to 10"):
        set_in("settings", "temperature", 11.0)
    assert users_config().read_text() == "[settings]\nseed = 3\n"


def test_a_write_that_fails_leaves_the_old_file_and_no_other(monkeypatch):
    write(users_config(), "[settings]\nseed = 3\n")

    def broken(*_: object) -> None:
        raise OSError("no space")

    monkeypatch.setattr(os, "replace", broken)
    with pytest.raises(ConfigError, match="no space"):
        set_in("settings", "seed", 4)
    assert users_config().read_text() == "[settings]\nseed = 3\n"
    assert sorted(file.name for file in config_dir().iterdir()) == [".config.toml.lock", "config.toml"]


def test_two_programs_that_change_a_file_at_once_lose_nothing():
    """What the second one reads must hold what the first one writes: it waits, although it could begin."""

    def first(document: Document) -> None:
        other.start()
        other.join(0.3)
        put(document, ("settings",), "seed", 3)

    other = Thread(target=set_in, args=("settings", "top_p", 0.5))
    change_file(users_config(), first, lambda place, data: None)
    other.join()
    assert user_settings() == {"seed": 3, "top_p": 0.5}


def test_a_file_that_is_being_changed_for_long_is_told_in_one_line(monkeypatch):
    monkeypatch.setattr(toml_editing, "_PATIENCE_S", 0.05)
    set_in("settings", "seed", 3)
    with locked(config_dir() / ".config.toml.lock", 1), pytest.raises(ConfigError, match="another program holds"):
        set_in("settings", "seed", 4)
    assert user_settings() == {"seed": 3}


@pytest.mark.parametrize(
    "text",
    [
        'pairs.a.target = "smollm2-135m-instruct"\npairs.a.summary = "mine"\n',
        '[pairs]\na.target = "smollm2-135m-instruct"\na.summary = "mine"\n',
        '[pairs]\nb = { target = "scripted" }\na.target = "smollm2-135m-instruct"\na.summary = "mine"\n',
    ],
)
def test_dotted_keys_that_no_table_can_be_put_between_are_told_by_their_table(text):
    write(users_models(), text)
    assert load_catalog().pair("a").summary == "mine"
    with pytest.raises(ConfigError, match=r"models\.toml: the keys pairs\.a\.… .* write them as a \[pairs\.a\] table"):
        set_all_for_pair("a", {"width": 3})
    assert users_models().read_text() == text


def test_a_new_file_is_private_and_a_linked_one_stays_a_link(tmp_path):
    set_in("settings", "seed", 4)
    assert stat.S_IMODE(users_config().stat().st_mode) == 0o600
    (tmp_path / "dotfiles.toml").write_text("[settings]\nseed = 3\n")
    users_config().unlink()
    users_config().symlink_to(tmp_path / "dotfiles.toml")
    set_in("settings", "seed", 5)
    assert users_config().is_symlink()
    assert (tmp_path / "dotfiles.toml").read_text() == "[settings]\nseed = 5\n"


def test_unknown_pairs_are_answered_with_the_nearest():
    with pytest.raises(UsageError, match="did you mean 'smol'"):
        set_all_for_pair("smoll", {"width": 3})


def test_forgetting_what_was_never_written_changes_nothing():
    assert unset("seed") is None
    assert unset("width", "smol") is None
    assert not users_config().exists()


@pytest.mark.parametrize("linked", ["file", "folder"])
def test_a_link_into_a_folder_that_is_not_there_makes_none(linked, tmp_path):
    away = tmp_path / "disk" / "dotfiles"
    place = users_config() if linked == "file" else config_dir()
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(away / place.name)
    with pytest.raises(
        ConfigError, match=rf"config\.toml cannot be changed: .* is a link to {away}.*, which is not there"
    ):
        set_in("settings", "seed", 3)
    assert not away.parent.exists()


def test_a_link_to_a_file_that_is_not_there_yet_makes_it(tmp_path):
    config_dir().mkdir(parents=True)
    users_config().symlink_to(tmp_path / "mine.toml")
    set_in("settings", "seed", 3)
    assert users_config().is_symlink()
    assert "seed = 3" in (tmp_path / "mine.toml").read_text()
