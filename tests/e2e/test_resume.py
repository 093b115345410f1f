"""Leaving and coming back, in a real terminal."""

from __future__ import annotations

import os
import re
import signal
from contextlib import suppress

import pytest

from specchat.errors import StoreError
from specchat.store.chats import Chats
from specchat.store.database import default_path, open_to_read
from specchat.store.records import StoredMessage
from tests.e2e.terminal import FIGURES, Terminal

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("preloaded_app")]

ENTER, CTRL_C, CTRL_O, F8 = "\r", "\x03", "\x0f", "\x1b[19~"
ARGUMENTS = ["--pair", "scripted", "--drafter", "draft_model", "--controller", "fixed", "--max-tokens", "60"]


def start(terminals: list[Terminal], *arguments: str) -> Terminal:
    terminals.append(Terminal([*ARGUMENTS, *arguments]))
    terminals[-1].until("● scripted")
    return terminals[-1]


def leave(terminal: Terminal) -> str:
    """Quit, and what stands on the normal screen then."""
    terminal.type(CTRL_C + CTRL_C)
    assert terminal.gone(45) == 0
    return terminal.text


def kept() -> list[StoredMessage]:
    with open_to_read(default_path()) as connection:
        chats = Chats(connection)
        return chats.chat(chats.last())[1]


def reply_is_kept() -> bool:
    with suppress(StoreError):  # nothing is kept yet
        return any(message.role == "assistant" and message.content for message in kept())
    return False


def test_a_chat_goes_on_after_leaving_and_coming_back(terminals: list[Terminal]) -> None:
    first = start(terminals)
    first.type("hello there" + ENTER)
    first.until(lambda text: re.search(FIGURES, text) is not None)
    hint = re.search(r"specchat -r (\w+)", leave(first))
    assert hint is not None, first.text
    assert "hello there" in first.text
    again = start(terminals, "-c")
    again.until(lambda text: "hello there" in text and re.search(FIGURES, text) is not None)
    again.type("and then?" + ENTER)
    again.until(lambda text: len(re.findall(FIGURES, text)) == 2)
    assert f"-r {hint[1]}" in leave(again)
    assert [message.content for message in kept()][::2] == ["hello there", "and then?"]
    third = start(terminals, "-r", hint[1][:4])
    third.until("and then?")


def test_a_program_that_is_killed_leaves_the_question_and_what_was_written(terminals: list[Terminal]) -> None:
    first = start(terminals, "--max-tokens", "4000")
    first.type("/speed 4" + ENTER)  # so that it is killed in the middle of the reply
    first.type("never ending" + ENTER)
    first.until(lambda text: " guess" in text)
    first.until(lambda _: reply_is_kept())
    os.kill(first.process.pid, signal.SIGKILL)
    again = start(terminals, "-c")
    again.until(lambda text: "never ending" in text and "interrupted" in text)
    question, reply = kept()
    assert question.content == "never ending"
    assert reply.status == "interrupted"
    assert reply.content


def test_the_list_of_chats_opens_one(terminals: list[Terminal]) -> None:
    first = start(terminals)
    first.type("hello there" + ENTER)
    first.until(lambda text: re.search(FIGURES, text) is not None)
    first.type("\x0e")
    first.until(lambda text: "hello there" not in text)
    first.type(CTRL_O)
    first.until("2 messages")
    first.type(ENTER)
    first.until(lambda text: "hello there" in text and re.search(FIGURES, text) is not None)
