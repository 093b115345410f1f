"""Settings and pairs in a real terminal: changed, saved, added, and still there at the next start."""

from __future__ import annotations

import re

import pytest

from specchat.config import load_catalog, users_models
from tests.e2e.terminal import Terminal

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("preloaded_app")]

ENTER, ESCAPE, CTRL_C, BACKSPACE, F2, F4 = "\r", "\x1b", "\x03", "\x7f", "\x1bOQ", "\x1bOS"


def start(terminals: list[Terminal], *arguments: str) -> Terminal:
    terminals.append(Terminal(list(arguments), 100, 30))
    return terminals[-1]


def leave(terminal: Terminal) -> None:
    terminal.type(CTRL_C + CTRL_C)
    assert terminal.gone() == 0


def test_a_setting_is_found_changed_saved_and_in_force_at_the_next_start(terminals: list[Terminal]) -> None:
    chat = start(terminals, "--pair", "scripted")
    chat.until("● scripted")
    chat.type(F2)
    chat.until("← → change")
    chat.type("/")
    chat.until("settings /")
    chat.type("width" + ENTER + "5" + ENTER)
    chat.until("1 unsaved · Ctrl+S saves")
    chat.type("\x13")
    chat.until("saved 1 setting")
    assert "width = 5" in users_models().read_text()
    chat.type(ESCAPE)
    chat.until("drafter")
    chat.type(ESCAPE)
    leave(chat)
    again = start(terminals, "--pair", "scripted")
    again.until("● scripted")
    again.type(F2)
    again.until("• width")
    leave(again)


def test_a_pair_is_added_looked_at_loaded_and_talked_to(terminals: list[Terminal]) -> None:
    chat = start(terminals, "--pair", "scripted", "--max-tokens", "20")
    chat.until("● scripted")
    chat.type(F4)
    chat.until("a adds")
    chat.type("a")
    chat.until("draft model, or nothing")
    chat.type("scriptd" + ENTER)
    chat.until(lambda text: text.count("scriptd") == 2)  # the name is proposed, and has the focus
    chat.type(ENTER)
    chat.until("not a file, a repository")
    assert not users_models().exists()
    chat.type(BACKSPACE)
    chat.until(" script ")
    chat.type("ed" + ENTER)
    chat.until("● scriptd")
    assert load_catalog().pair("scriptd").target == "scripted"
    chat.type(ENTER)
    chat.until("● scriptd · ")
    chat.type("hello" + ENTER)
    chat.until(lambda text: re.search(r"20\stok", text) is not None)
    leave(chat)
