"""What was sent before, from one session to the next."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tracemalloc

import pytest

from specchat.config import private_dir
from specchat.store import prompt_history
from specchat.store.prompt_history import History


def test_the_next_session_knows_what_was_sent(tmp_path):
    file = tmp_path / "state" / "prompts.jsonl"
    first = History(file, private_dir)
    for text in ("one", "two\nlines", "two\nlines", "  ", "三 🎉"):
        first.add(text)
    assert History(file).texts == ["one", "two\nlines", "三 🎉"]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700


def test_nothing_is_written_before_something_is_sent(tmp_path):
    known = History(tmp_path / "state" / "prompts.jsonl", private_dir)
    assert known.texts == []
    assert list(tmp_path.iterdir()) == []


def test_without_a_file_it_is_forgotten():
    known = History()
    known.add("one")
    assert known.texts == ["one"]
    assert History().texts == []


def test_the_file_is_shortened_to_the_newest(tmp_path, monkeypatch):
    monkeypatch.setattr(prompt_history, "KEPT", 10)
    file = tmp_path / "prompts.jsonl"
    writer = History(file)
    for number in range(25):
        writer.add(str(number))
    assert History(file).texts[-1] == "24"
    assert len(file.read_text().splitlines()) == 10
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert History(file).texts == [str(number) for number in range(15, 25)]


def test_two_apps_at_once_lose_nothing(tmp_path):
    file = tmp_path / "prompts.jsonl"
    code = (
        "import sys; from pathlib import Path; from specchat.store.prompt_history import History\n"
        "h = History(Path(sys.argv[1]))\n"
        "for n in range(100): h.add(f'{sys.argv[2]} {n}')\n"
    )
    writers = [subprocess.Popen([sys.executable, "-c", code, str(file), name]) for name in "ab"]
    assert [writer.wait(60) for writer in writers] == [0, 0]
    texts = History(file).texts
    assert sorted(texts) == sorted(f"{name} {n}" for name in "ab" for n in range(100))


def test_damaged_lines_are_passed_over(tmp_path):
    file = tmp_path / "prompts.jsonl"
    file.write_bytes(b'{"text": "one"}\n\xff\xfe\n{"text": 3}\n[]\n{"te\n{"text": "two"}\n')
    assert History(file).texts == ["one", "two"]


@pytest.mark.parametrize(
    "line",
    [
        b"[" * 200_000,
        b'{"other": ' + b"[" * 200_000,
        b'{"text": "' + b"x" * 20_001 + b'"}',
        b'{"text": "caf\xe9"}',
    ],
)
def test_a_line_that_nobody_wrote_here_is_passed_over(tmp_path, line):
    file = tmp_path / "prompts.jsonl"
    file.write_bytes(b'{"text": "one"}\n' + line + b'\n{"text": "two"}\n')
    assert History(file).texts == ["one", "two"]


def test_after_a_line_that_was_cut_off_the_next_text_begins_a_new_one(tmp_path):
    file = tmp_path / "prompts.jsonl"
    file.write_bytes(b'{"text": "one"}\n{"text": "tw')
    known = History(file)
    known.add("three")
    known.add("four")
    assert History(file).texts == ["one", "three", "four"]


def test_of_a_file_without_bounds_only_the_end_is_read_and_kept(tmp_path):
    file = tmp_path / "prompts.jsonl"
    with file.open("wb") as output:
        output.truncate(1 << 40)  # a hole: it takes no room on the disk
        output.seek(0, os.SEEK_END)
        output.write(b'\n{"text": "one"}\n{"text": "two"}\n')
    tracemalloc.start()
    known = History(file).texts
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert known == ["one", "two"]
    assert peak < 8 * prompt_history.MOST_BYTES
    assert file.stat().st_size <= prompt_history.MOST_BYTES
    assert History(file).texts == ["one", "two"]


def test_a_home_that_cannot_be_written_is_said_once_and_the_session_goes_on(tmp_path):
    (tmp_path / "state").write_text("a file, where the folder should be")
    known = History(tmp_path / "state" / "prompts.jsonl", private_dir)
    known.add("one")
    assert "not remembered" in known.problem
    assert known.texts == ["one"]


def test_very_long_texts_stay_out_of_the_file(tmp_path):
    file = tmp_path / "prompts.jsonl"
    known = History(file)
    known.add("x" * (prompt_history.LONGEST_KEPT + 1))
    assert len(known.texts) == 1
    assert not file.exists()


def test_every_word_must_occur_and_the_newest_comes_first():
    known = History()
    for text in ("write a poem", "Write a letter", "poem about rain", "write a poem"):
        known.add(text)
    assert known.found("poem") == ["write a poem", "poem about rain"]
    assert known.found("WRITE a") == ["write a poem", "Write a letter"]
    assert known.found("xyz") == []
