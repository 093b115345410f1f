"""Files of the prompt cache: whole or not there, bounded, and erased with the chats that they belong to."""

from __future__ import annotations

import hashlib
import os
import time

import pytest

from specchat.config.prompt_files import PromptFiles

BLOCK = bytes(range(250)) * 4


def key(number):
    return hashlib.sha256(bytes([number])).digest()


def filled(folder, owners, most_bytes=1 << 20):
    """Blocks by owner, written in this order."""
    files = PromptFiles(folder / "prompts", most_bytes)
    files.prepare()
    for owner, numbers in owners.items():
        files.name(owner, [key(number) for number in numbers])
        for number in numbers:
            files.write(key(number), BLOCK)
    return files


def content(files, number):
    into = bytearray(len(BLOCK))
    return into if files.read(key(number), into) else None


def there(files, most=20):
    return [number for number in range(most) if files.has(key(number))]


def test_blocks_go_with_the_last_chat_that_names_them(tmp_path):
    files = filled(tmp_path, {"one": [1, 2, 3], "two": [1, 4]})
    files.write(key(9), BLOCK)  # of a chat whose list is lost
    (tmp_path / "prompts/blocks/.unfinished.new").write_bytes(b"half")
    assert files.erase(["one", "../two", "nobody"]) == ""
    assert there(files) == [1, 4]
    assert len(list((tmp_path / "prompts/blocks").iterdir())) == 2
    assert files.erase(["two"]) == ""
    assert there(files) == []
    assert not list((tmp_path / "prompts/texts").iterdir())
    assert PromptFiles(tmp_path / "nothing").erase(["one"]) == ""


def test_what_was_not_used_for_longest_goes_first_and_of_a_text_its_end(tmp_path):
    size = len(BLOCK) + 68
    files = filled(tmp_path, {"old": [1, 2, 3], "new": [4, 5]}, 4 * size)
    files.used([key(4), key(5)])
    for at, number in enumerate((1, 2, 3)):
        os.utime(files._block(key(number)), (time.time(), time.time() - 100 - at))
    files.shrink()
    assert there(files) == [1, 2, 4, 5]
    files.used([key(1), key(2)])
    files.most_bytes = 3 * size
    files.shrink()
    assert there(files) == [1, 2, 4]
    assert not files.write(key(7), bytes(4 * size)), "more than all may take"
    files.drop([key(1), key(2)])
    for owner in ("old", "new"):
        os.utime(tmp_path / "prompts/texts" / owner, (0, time.time() - 7200))
    files.shrink()
    assert [file.name for file in (tmp_path / "prompts/texts").iterdir()] == ["new"], "a list of nothing goes"


@pytest.mark.parametrize("moment", ["os.replace", "pathlib.Path.chmod"])
def test_a_crash_while_writing_leaves_nothing_half(tmp_path, monkeypatch, moment):
    files = filled(tmp_path, {"one": [1]})

    class Killed(BaseException):
        pass

    def killed(*_, **__):
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(moment, killed)
        patched.setattr("pathlib.Path.unlink", killed)  # nothing is cleaned up either
        with pytest.raises(Killed):
            files.write(key(2), BLOCK)
    assert there(files) == [1]
    assert content(files, 1) == BLOCK
    [left] = (tmp_path / "prompts/blocks").glob(".*")
    files.shrink()
    assert left.exists(), "it may be another program's"
    os.utime(left, (0, time.time() - 7200))
    files.shrink()
    assert not left.exists()
    assert there(files) == [1]


def test_what_is_no_file_is_ignored(tmp_path, caplog):
    files = filled(tmp_path, {"one": [1]})
    folder = tmp_path / "prompts/blocks"
    (folder / key(2).hex()).mkdir()
    if hasattr(os, "mkfifo"):
        os.mkfifo(folder / key(3).hex())
        assert content(files, 3) is None
    assert content(files, 2) is None
    assert content(files, 5) is None
    assert len(caplog.records) == 1 + hasattr(os, "mkfifo")
    (tmp_path / "prompts/texts/two").write_bytes(b"\xff\n" + b"ab" * 40 + b"\n../../x\n")
    assert key(2).hex() in files.erase(["one"]), "a folder is not removed"
    assert there(files) == []
