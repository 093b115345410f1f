"""What the user's config.toml may say, and how what it may not is refused."""

from __future__ import annotations

import errno
from pathlib import Path
from unittest.mock import Mock

import pytest
from config_files import model_with, write

from specchat import config
from specchat.config.settings_saving import set_in
from specchat.errors import ConfigError
from specchat.settings import Settings


def test_without_a_file_the_user_has_no_settings_and_no_keys():
    assert config.user_settings() == {}
    assert config.user_keys() == {}


def test_user_settings_come_out_as_settings_hold_them():
    write(
        "config.toml",
        '[settings]\ntemperature = 1\nstop = ["END"]\npair = "smol"\n'
        '[settings.method_options]\n"prompt_lookup.max_ngram" = 5\nsuffix.floor = 2\n'
        '[keys]\nquit = "ctrl+q"\n',
    )
    found = config.user_settings()
    assert found == {
        "temperature": 1.0,
        "stop": ("END",),
        "pair": "smol",
        "method_options": {"prompt_lookup.max_ngram": 5, "suffix.floor": 2},
    }
    assert Settings().but(found).options_for("prompt_lookup") == {"max_ngram": 5}
    assert config.user_keys() == {"quit": "ctrl+q"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[settings]\ntemprature = 1", ["line 2", "[settings]", "'temprature'", "did you mean 'temperature'"]),
        ("[settings]\ntemperature = 11", ["line 2", "temperature = 11", "0, or 1e-06 to 10"]),
        ("[settings]\ntemperature = 1e-320", ["line 2", "temperature = 1e-320", "0, or 1e-06 to 10"]),
        ("[settings]\nseed = 1.5", ["line 2", "[settings] seed = 1.5 is not a whole number"]),
        ("[settings]\nseed = true", ["seed = True is not a whole number"]),
        ('[settings]\nstop = "END"', ["stop = 'END' is not a list"]),
        ("[settings]\nstop = [1]", ["stop = 1 is not a text"]),
        ('[settings]\nstop = [""]', ["line 2", "stop", "non-empty"]),
        ("[settings]\nmethod_options = 3", ["method_options = 3 is not a table"]),
        ("[settings]\nmethod_options = { x = 3 }", ["line 2", "[settings] method_options", "METHOD.OPTION"]),
        ('[app]\nnotify = "bel"', ["line 2", "[app] notify = 'bel'", "did you mean 'bell'"]),
        ("[app]\nmouse = 1", ["line 2", "[app] mouse = 1 is not true or false"]),
        ("[app]\nmuose = true", ["line 2", "did you mean 'mouse'"]),
        ("[keys]\nquit = 3", ["line 2", "[keys] quit = 3 is not a text"]),
        ("[setings]\nseed = 1", ["line 1", "setings", "did you mean 'settings'"]),
        ("settings = 3", ["line 1", "settings = 3 is not a table"]),
    ],
)
def test_settings_that_cannot_be_meant_so_are_refused_by_file_table_key_and_value(text, words):
    write("config.toml", text)
    read = config.user_keys if "[keys]" in text else config.user_app if "[app]" in text else config.user_settings
    with pytest.raises(ConfigError) as error:
        read()
    for word in [str(config.config_dir() / "config.toml"), *words]:
        assert word in str(error.value)


BROKEN = {
    "bytes that are no text": (b"[settings]\n# caf\xe9\n", "config.toml, line 2 is not UTF-8: it holds the byte 0xe9"),
    "two bytes a letter": ("[settings]".encode("utf-16"), "line 1 is not UTF-8"),
    "a zero byte": (b"[settings]\n\x00", "is not TOML"),
    "lists without end": (b"x = " + b"[" * 5000, "nested deeper than 16 levels"),
    "tables in tables": (b"[" + b"a." * 5000 + b"a]", "nested deeper than 16 levels"),
    "dots without end": (b"settings." + b"a." * 5000 + b"a = 1", "nested deeper than 16 levels"),
    "a megabyte of dots": (b"settings." + b"a." * 500_000 + b"a = 1", "nested deeper than 16 levels"),
    "a megabyte of quoted dots": (b"x = {" + b'"a" . ' * 200_000 + b"a = 1}", "nested deeper than 16 levels"),
    "a number of many digits": (b"[settings]\nwidth = " + b"9" * 5000, "line 2: a number is too long"),
    "a number of many bits": (b"[settings]\nwidth = 0x" + b"f" * 5000, "width = a number of 20000 bits does not fit"),
    "a number beyond 64 bits": (b"[settings]\nseed = " + b"9" * 30, "seed = 9.* does not fit into 64 bits"),
    "one table where several stand": (b"[[settings]]\nwidth = 3", "line 1: settings = .* is not a table"),
    "a value for a table": (b"settings = 3", "line 1: settings = 3 is not a table"),
    "a text without end": (b"[settings]\ndrafter = '" + b"x" * 5 + b"\n", "is not TOML"),
    "a table for a value": (b"[settings.width]\nx = 1", "width = .* is not a whole number"),
    "a name that steers the terminal": (b'[settings]\n"\\u001b[31m" = 1', r"'\\x1b\[31m'"),
    "a long name": (b"[settings]\n" + b"x" * 9000 + b" = 1", "there is no setting 'xxx"),
    "a long value": (b"[settings]\nwidth = '" + b"x" * 9000 + b"'", "width = 'xxx.* is not a whole number"),
    "more than is written by hand": (b"#" * (5 << 20), "larger than 4 MiB"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_whatever_bytes_stand_in_a_file_the_answer_is_one_short_line(what):
    data, line = BROKEN[what]
    file = write("config.toml", "")
    file.write_bytes(data)
    with pytest.raises(ConfigError, match=line) as error:
        config.user_settings()
    assert str(error.value).startswith(str(file))
    assert str(error.value).isprintable()
    assert len(str(error.value)) < 700
    with pytest.raises(ConfigError, match=line):
        set_in("settings", "depth", 4)
    assert file.read_bytes() == data


def test_a_mark_that_an_editor_puts_before_the_text_is_no_part_of_it():
    write("config.toml", "").write_bytes(b"\xef\xbb\xbf[settings]\r\nwidth = 3\r\n")
    assert config.user_settings() == {"width": 3}
    set_in("settings", "width", 4)
    assert config.user_settings() == {"width": 4}


@pytest.mark.parametrize("path", ["", "a\\u0000b", "~nosuchuser/x", "x" * 300, "a/" * 3000])
def test_a_path_that_cannot_be_one_is_refused_where_it_stands(path):
    with pytest.raises(ConfigError, match=r"models\.toml, line 2: \[models\.m\] sources\.path = '"):
        model_with(f'sources = [{{ path = "{path}" }}]')


def test_a_folder_that_is_closed_is_said(monkeypatch):
    monkeypatch.setattr(Path, "stat", Mock(side_effect=PermissionError(errno.EACCES, "Permission denied")))
    with pytest.raises(ConfigError, match=r"config\.toml cannot be read: Permission denied"):
        config.user_settings()


def test_a_user_without_a_home_is_named(monkeypatch):
    monkeypatch.setenv("SPECCHAT_HOME", "~nosuchuser")
    with pytest.raises(ConfigError, match="'~nosuchuser' begins with the home of a user"):
        config.user_settings()


def test_the_line_of_an_error_is_that_of_its_own_table():
    write("models.toml", '[pairs.a]\ntarget = "scripted"\n[pairs.b]\ntarget = "scriptd"\n')
    with pytest.raises(ConfigError, match=r"line 4: \[pairs\.b\] target"):
        config.load_catalog()
