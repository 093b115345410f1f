"""Of an error in the app itself one line is said, and the traceback is kept in a file."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from specchat.cli.chat import MOST_LOGS, crash_line
from specchat.config import state_dir

chat = importlib.import_module("specchat.cli.chat")  # the package has a command of this name


def planted() -> Exception:
    try:
        raise RuntimeError("planted\nin two lines")
    except RuntimeError as error:
        return error


def test_the_line_names_the_file_with_the_traceback():
    line = crash_line(planted())
    said, _, path = line.partition("; what it was doing is in ")
    assert said == "specchat: internal error: RuntimeError: planted in two lines"
    assert Path(path).parent == state_dir() / "logs"
    assert "in planted\n" in Path(path).read_text()
    assert Path(path).stat().st_mode & 0o077 == 0


def test_only_the_newest_files_are_kept():
    lines = [crash_line(planted()) for _ in range(MOST_LOGS + 2)]
    kept = sorted((state_dir() / "logs").glob("crash-*.log"))
    assert [str(file) for file in kept] == [line.rpartition(" is in ")[2] for line in lines[2:]]


def test_where_no_file_can_be_written_the_traceback_is_in_the_terminal(monkeypatch, tmp_path):
    (tmp_path / "taken").write_text("")
    monkeypatch.setattr("specchat.cli.chat.state_dir", lambda: tmp_path / "taken")
    told, _, line = crash_line(planted()).rpartition("\n\n")
    assert told.startswith("Traceback")
    assert line.startswith("specchat: internal error: RuntimeError: planted in two lines; its log could not be written")


@pytest.mark.parametrize("replays", [False, True])
def test_an_error_in_the_app_is_said_in_one_line_and_is_exit_code_1(monkeypatch, capsys, replays):
    def run(app, **_):
        app._handle_exception(planted())

    monkeypatch.setattr(chat, "take_terminal", lambda: None)
    monkeypatch.setattr(chat, "run_app", run)
    monkeypatch.setattr("specchat.tui.app.SpecchatApp._close_messages_no_wait", lambda app: None)
    assert (chat.open_replay(Path("assets/demo.jsonl")) if replays else chat.open_chat({}, "")) == 1
    told = capsys.readouterr().err
    assert told.startswith("specchat: internal error: RuntimeError: planted in two lines; what it was doing is in ")
    assert told.count("\n") == 1
