"""Small files of what was learnt or measured: whatever lies there, reading is bounded and ends."""

from __future__ import annotations

import os

import msgspec
import pytest

from specchat.config.kept_files import MOST_BYTES, read_end, read_json, read_small, write_whole


def pipe(file):
    os.mkfifo(file)


def endless(file):
    with file.open("wb") as output:
        output.truncate(1 << 40)  # a hole: it takes no room on the disk


def no_file(file):
    file.mkdir()


def too_large(file):
    file.write_bytes(b"{" + b" " * MOST_BYTES + b"}")


def nested(file):
    file.write_bytes(b'{"a": {"known": 1, "other": ' + b"[" * 200_000)


def no_utf8(file):
    file.write_bytes(b'{"a": {"known": 1, "other": "caf\xe9"}, "caf\xe9": {"known": 1}}')


class Entry(msgspec.Struct):
    known: int


@pytest.mark.parametrize("make", [pipe, endless, no_file, too_large, nested, no_utf8])
def test_what_is_no_small_file_of_ours_says_nothing(tmp_path, make):
    file = tmp_path / "small.json"
    make(file)
    assert read_json(file, dict[str, Entry]) is None
    assert make in (nested, no_utf8) or read_small(file) == b""


def test_what_was_written_is_read_and_stands_whole_or_not_at_all(tmp_path, monkeypatch):
    file = tmp_path / "made" / "small.json"
    write_whole(file, b'{"a": {"known": 1}}')
    assert read_json(file, dict[str, Entry]) == {"a": Entry(1)}
    monkeypatch.setattr(os, "replace", lambda *names: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        write_whole(file, b"{}")
    assert read_json(file, dict[str, Entry]) == {"a": Entry(1)}
    assert [one.name for one in file.parent.iterdir()] == ["small.json"]


def test_the_end_of_a_file_is_its_last_bytes(tmp_path):
    file = tmp_path / "log"
    file.write_bytes(b"0123456789")
    assert [read_end(file, most) for most in (3, 10, 11)] == [b"789", b"0123456789", b"0123456789"]
