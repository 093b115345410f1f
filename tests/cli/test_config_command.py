"""`specchat config`: what it prints and writes, and how it refuses."""

from __future__ import annotations

import sys

import pytest
from typer.testing import CliRunner

from specchat.cli.config import app
from specchat.config import load_catalog, settings_of, user_app, user_keys, users_config, users_models
from specchat.errors import ConfigError, UsageError


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments))
    if result.exception is not None:
        raise result.exception
    return result.stdout


def test_a_default_is_set_read_and_forgotten():
    assert run("set", "temperature", "0.7") == f"wrote temperature in {users_config()} [settings]\n"
    assert run("get", "temperature") == "0.7\n"
    assert "removed temperature" in run("unset", "temperature")
    assert run("get", "temperature") == "0.5\n"
    assert "was not set" in run("unset", "temperature")


def test_a_default_for_one_pair_is_no_other_pairs():
    assert "[pairs.smol.defaults]" in run("set", "width", "4", "--pair", "smol")
    assert run("get", "width") == "4\n"
    assert run("get", "width", "--pair", "qwen-coder") == "3\n"


def test_a_default_for_every_pair_wins_over_what_pairs_were_shipped_with():
    run("set", "controller", "fixed")
    assert {settings_of(pair).controller for pair in load_catalog().pairs.values()} == {"fixed"}


def test_everything_that_was_written_is_listed_with_its_place():
    assert run("get") == "you wrote no defaults of your own\n"
    run("set", "stop", "END", "###")
    run("set", "suffix.depth", "12", "--pair", "smol")
    said = run("get").splitlines()
    assert said[0].split("   ")[0] == 'stop = ["END", "###"]'
    assert said[1].startswith("suffix.depth = 12")
    assert said[1].endswith("models.toml [pairs.smol.defaults]")


def test_an_option_that_was_not_set_reads_as_its_own_default():
    assert run("get", "suffix.depth") == "64\n"


def test_how_the_app_behaves_and_its_keys_are_set_the_same_way():
    assert run("set", "app.mouse", "off") == f"wrote mouse in {users_config()} [app]\n"
    run("set", "keys.help", "f9")
    assert (user_app().mouse, user_keys()) == (False, {"help": "f9"})
    assert (run("get", "app.mouse"), run("get", "keys.help"), run("get", "keys.stop")) == (
        "false\n",
        "f9\n",
        "escape\n",
    )
    assert [line.split("   ")[0].strip() for line in run("get").splitlines()] == ["app.mouse = false", "keys.help = f9"]
    run("unset", "app.mouse")
    run("unset", "keys.help")
    assert run("get") == "you wrote no defaults of your own\n"


def test_a_binding_with_a_dot_in_its_name_is_found_however_it_was_written():
    users_config().parent.mkdir(parents=True)
    users_config().write_text('[keys]\ntranscript.copy = "y"\n')
    run("set", "keys.transcript.copy", "z")
    run("set", "keys.transcript.next", "j")
    assert user_keys() == {"transcript.copy": "z", "transcript.next": "j"}
    run("unset", "keys.transcript.copy")
    assert user_keys() == {"transcript.next": "j"}


def test_path_names_both_files():
    assert run("path").splitlines() == [str(users_config()), str(users_models())]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["set", "wdth", "3"], "there is no setting 'wdth'; did you mean 'width'?"),
        (["set", "width", "99"], "1 to 64"),
        (["set", "width", "3", "4"], "takes one value"),
        (["set", "drafter", "sufix"], "did you mean 'suffix'"),
        (["set", "suffix.dept", "3"], "did you mean 'depth'"),
        (["set", "sufix.depth", "3"], "did you mean 'suffix'"),
        (["set", "pair", "smoll"], "did you mean 'smol'"),
        (["set", "pair", "smol", "--pair", "smol"], "cannot be a default of a pair"),
        (["set", "width", "3", "--pair", "smoll"], "did you mean 'smol'"),
        (["get", "wdth"], "did you mean 'width'"),
        (["unset", "wdth"], "did you mean 'width'"),
        (["set", "theme", "nord"], "there is no setting 'theme'; did you mean 'app.theme'?"),
        (["set", "app.them", "nord"], "did you mean 'theme'"),
        (["set", "app.theme", "nrd"], "did you mean 'nord'"),
        (["set", "app.mouse", "perhaps"], "true or false"),
        (["set", "app.notify", "bel"], "did you mean 'bell'"),
        (["set", "app.mouse", "off", "--pair", "smol"], "the same for every pair"),
        (["set", "keys.hlp", "f9"], "did you mean 'help'"),
        (["set", "keys.help", "f99"], "'f99' is not a key"),
        (["set", "keys.help", "f2"], "F2 is bound twice"),
    ],
)
def test_wrong_input_is_refused_with_the_nearest_and_nothing_is_written(arguments, words):
    with pytest.raises(UsageError) as error:
        run(*arguments)
    assert words in str(error.value)
    assert error.value.exit_code == 2
    assert not users_config().exists()
    assert not users_models().exists()


def test_edit_opens_the_editor_and_checks_what_was_written(tmp_path, monkeypatch):
    script = tmp_path / "editor.py"
    script.write_text("import sys; open(sys.argv[1], 'w').write('[settings]\\nsed = 3\\n')")
    monkeypatch.setenv("VISUAL", f"{sys.executable} {script}")
    with pytest.raises(ConfigError, match="did you mean 'seed'"):
        run("edit")


def test_an_editor_that_fails_is_told_with_its_exit_code(monkeypatch):
    monkeypatch.setenv("VISUAL", "false")
    with pytest.raises(UsageError, match=r"'false' .*: it ended with exit code 1; set EDITOR"):
        run("edit")


def test_an_editor_that_is_not_there_is_told(monkeypatch):
    monkeypatch.setenv("VISUAL", "no-such-editor")
    with pytest.raises(UsageError, match="set EDITOR"):
        run("edit")


@pytest.mark.parametrize("arguments", [["get"], ["get", "width"], ["set", "width", "4"], ["unset", "width"]], ids=str)
def test_an_empty_name_is_no_pair(arguments):
    with pytest.raises(UsageError, match="no pair is called ''"):
        run(*arguments, "--pair", "")
    assert not users_config().exists()
