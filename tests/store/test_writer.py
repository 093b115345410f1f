"""The thread that writes: in order, within a second, never in the way, also after failures and beside others."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from kit import answered, chat, said

from specchat.store import database
from specchat.store import writer as writer_module
from specchat.store.chats import Chats
from specchat.store.database import open_to_read, open_to_write
from specchat.store.records import StoredMessage
from specchat.store.writer import ProcessLock, Writer, is_gone


class Listener:
    """Remembers what a writer said."""

    def __init__(self, path: Path) -> None:
        self.remarks: list[str] = []
        self.problems: list[str] = []
        self.begun_anew = threading.Event()
        self.writer = Writer(path, remark=self.remarks.append, problem=self.problems.append, anew=self.begun_anew.set)

    def say(self, *messages: StoredMessage, id: str = "first") -> None:
        def job(chats: Chats, name: str) -> None:
            chats.save(chat(id))
            for message in messages:
                chats.add(id, message, name if message.status == "streaming" else None)

        self.writer.put(job)

    def until(self, true: Callable[[], bool]) -> None:
        end = time.monotonic() + 30
        while not true():
            assert time.monotonic() < end
            time.sleep(0.01)


def messages_of(path: Path, id: str = "first") -> list[StoredMessage]:
    with open_to_read(path) as connection:
        return Chats(connection).chat(id)[1]


def test_closing_writes_what_is_left(path: Path) -> None:
    one = Listener(path)
    one.say(said("a", "hi"), answered("b", "", "a", "streaming"))
    one.writer.grow("b", lambda chats, _: chats.update("first", answered("b", "half", None, "streaming")))
    assert one.writer.close()
    assert [message.content for message in messages_of(path)] == ["hi", "half"]
    assert not list((path.parent / "running").iterdir())


def test_a_reply_that_grows_is_written_before_it_is_done(path: Path) -> None:
    one = Listener(path)
    one.say(answered("b", "", None, "streaming"))
    assert one.writer.settled(10)
    one.writer.grow("b", lambda chats, _: chats.update("first", answered("b", "half", None, "streaming")))
    one.until(lambda: messages_of(path)[0].content == "half")
    one.writer.put(lambda chats, _: chats.update("first", answered("b", "whole", None)), of="b")
    assert one.writer.settled(10)
    assert messages_of(path) == [answered("b", "whole", None)]
    one.writer.close()


def test_a_reply_that_is_done_is_never_written_over_by_an_older_part_of_it(path: Path) -> None:
    one = Listener(path)
    one.say(answered("b", "", None, "streaming"))
    one.writer.grow("b", lambda chats, _: chats.update("first", answered("b", "half", None, "streaming")))
    one.writer.put(lambda chats, _: chats.update("first", answered("b", "whole", None)), of="b")
    one.writer.close()
    assert messages_of(path)[0].content == "whole"


def test_text_that_arrives_while_an_older_state_is_written_is_written_too(path: Path) -> None:
    one = Listener(path)
    one.say(answered("b", "", None, "streaming"))
    assert one.writer.settled(10)

    def newer(chats: Chats, _: str) -> None:
        chats.update("first", answered("b", "half and more", None, "streaming"))

    def older(chats: Chats, _: str) -> None:
        chats.update("first", answered("b", "half", None, "streaming"))
        one.writer.grow("b", newer)

    one.writer.grow("b", older)
    one.until(lambda: messages_of(path)[0].content == "half and more")
    assert one.writer.close()


def test_what_cannot_be_written_now_is_written_later(path: Path, monkeypatch) -> None:
    monkeypatch.setattr(writer_module, "RETRY_S", 0.05)
    path.parent.mkdir()
    path.mkdir()  # no file can be opened here
    one = Listener(path)
    one.say(said("a", "hi"))
    one.until(lambda: bool(one.problems))
    assert str(path) in one.problems[0]
    assert not one.writer.settled(0.01)
    path.rmdir()
    one.until(lambda: one.problems[-1] == "")
    assert one.writer.settled(10)
    assert [message.content for message in messages_of(path)] == ["hi"]
    one.writer.close()


def test_a_problem_is_said_once(path: Path, monkeypatch) -> None:
    monkeypatch.setattr(writer_module, "RETRY_S", 0.0)
    path.mkdir(parents=True)
    one = Listener(path)
    attempts = []
    monkeypatch.setattr(writer_module, "open_to_write", lambda *_, **__: attempts.append(1) or os.mkdir(path))
    one.until(lambda: len(attempts) > 5)
    assert not one.writer.close()
    assert len(set(one.problems)) == len(one.problems)


def test_a_disk_that_is_full_costs_nothing_once_there_is_room(path: Path, monkeypatch) -> None:
    monkeypatch.setattr(writer_module, "RETRY_S", 0.05)
    full = True

    def job(chats: Chats, _: str) -> None:
        if full:
            error = sqlite3.OperationalError("database or disk is full")
            error.sqlite_errorcode = sqlite3.SQLITE_FULL
            raise error
        chats.save(chat())
        chats.add("first", said("a", "hi"))

    one = Listener(path)
    one.writer.put(job)
    one.until(lambda: bool(one.problems))
    assert one.problems == [f"{path}: the disk is full"]
    full = False
    one.until(lambda: one.problems[-1] == "")
    one.writer.close()
    assert [message.content for message in messages_of(path)] == ["hi"]


def test_a_file_that_another_program_locks_is_written_when_it_lets_go(path: Path, monkeypatch) -> None:
    monkeypatch.setattr(database, "BUSY_S", 0.05)
    monkeypatch.setattr(writer_module, "RETRY_S", 0.05)
    other = open_to_write(path)[0]
    one = Listener(path)
    assert one.writer.settled(10)
    other.execute("BEGIN IMMEDIATE")
    one.say(said("a", "hi"))
    one.until(lambda: bool(one.problems))
    assert one.problems == [f"{path}: another program holds it locked"]
    other.execute("COMMIT")
    one.until(lambda: one.problems[-1] == "")
    one.writer.close()
    assert [message.content for message in messages_of(path)] == ["hi"]


def test_a_file_that_breaks_while_it_is_open_is_put_aside_and_what_is_known_asked_for(path: Path, monkeypatch) -> None:
    monkeypatch.setattr(writer_module, "RETRY_S", 0.05)
    one = Listener(path)
    one.say(*(said(f"m{n}", "a long message " * 300) for n in range(50)))
    assert one.writer.settled(10)
    sqlite3.connect(path).execute("PRAGMA wal_checkpoint(TRUNCATE)")
    with path.open("r+b") as file:
        file.seek(10 * 4096)
        file.write(b"\xaa" * 40 * 4096)
    one.writer.put(lambda chats, _: chats._sql.execute("SELECT sum(length(content)) FROM messages").fetchone())
    one.until(one.begun_anew.is_set)
    assert "damaged" in one.remarks[0]
    one.say(said("a", "hi"))
    assert one.writer.close()
    assert [message.content for message in messages_of(path)] == ["hi"]


def test_a_message_that_contradicts_the_file_does_not_keep_the_others_out(path: Path) -> None:
    one = Listener(path)
    one.say(said("orphan", "hi", parent="never written"))
    one.say(said("a", "hello"), id="second")
    one.writer.close()
    assert [message.content for message in messages_of(path, "second")] == ["hello"]
    assert "not saved" in one.remarks[0]


CHILD = """
import sys, time
sys.path.insert(0, {tests!r})
from pathlib import Path
from kit import WHEN, answered, chat, said
from specchat.store.writer import ProcessLock, is_gone
from specchat.store.records import StoredMessage
from specchat.store.writer import Writer

writer = Writer(Path(sys.argv[1]), remark=print, problem=print, anew=print)

def begin(chats, name):
    chats.save(chat({id!r}))
    chats.add({id!r}, said("a", "hi"))
    chats.add({id!r}, answered("b", "", "a", "streaming"), name)

writer.put(begin)
for n in range(100_000):
    reply = StoredMessage("b", "a", "assistant", "word " * n, WHEN, "streaming", [5] * n)
    writer.grow("b", lambda chats, _, reply=reply: chats.update({id!r}, reply))
    if n == 20:
        print("growing", flush=True)
    time.sleep(0.01)
"""


def child(path: Path, id: str) -> subprocess.Popen[str]:
    """Another specchat that writes a reply without end."""
    code = CHILD.format(tests=str(Path(__file__).parent), id=id)
    process = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "growing\n"
    return process


def kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="kills without warning")
def test_a_reply_whose_writer_was_killed_becomes_interrupted_and_keeps_its_text(path: Path) -> None:
    process = child(path, "first")
    time.sleep(2 * writer_module.FLUSH_S)
    kill(process)
    one = Listener(path)
    one.writer.close()
    question, reply = messages_of(path)
    assert question.content == "hi"
    assert reply.status == "interrupted"
    assert reply.content.startswith("word word")
    assert len(reply.pieces) * 5 == len(reply.content)
    connection = open_to_write(path)[0]
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    assert not list((path.parent / "running").iterdir())


def test_what_the_killed_left_behind_is_swept_and_the_living_stay(path: Path) -> None:
    folder = path.parent / "running"
    alive = ProcessLock(folder)
    for name in ("old", "young"):
        (folder / f"{name}.lock").touch()
    for name in ("old", alive.name):
        os.utime(folder / f"{name}.lock", (0, 0))
    one = Listener(path)
    one.writer.close()
    assert {file.stem for file in folder.iterdir()} == {"young", alive.name}
    assert not is_gone(folder, alive.name)
    alive.leave()


def test_two_at_once_write_into_one_file_and_neither_touches_the_others_reply(path: Path) -> None:
    processes = [child(path, "first"), child(path, "second")]
    try:
        one = Listener(path)
        one.say(said("a", "hello"), id="third")
        assert one.writer.settled(20)
        one.writer.close()
        assert messages_of(path, "first")[1].status == messages_of(path, "second")[1].status == "streaming"
        assert one.problems == []
        assert all(process.poll() is None for process in processes)
    finally:
        for process in processes:
            kill(process)
