"""A race and a benchmark on a real engine, in a real terminal."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.terminal import Terminal

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("preloaded_app")]

ENTER, ESCAPE, CTRL_C = "\r", "\x1b", "\x03"


@pytest.fixture
def chat() -> Iterator[Terminal]:
    words = ["--pair", "scripted", "--drafter", "draft_model", "--controller", "fixed", "--max-tokens", "40"]
    terminal = Terminal(words, 80, 24)
    yield terminal
    terminal.close()


def test_a_race_proves_the_same_text_and_gives_the_chat_back(chat: Terminal) -> None:
    chat.until("● scripted")
    chat.type("/race hello there" + ENTER)
    chat.until("identical: all 40 tokens are the same")
    chat.type(ESCAPE)
    chat.until("Say something")
    chat.type("hello" + ENTER)
    chat.until("40\u00a0tok")
    chat.type(CTRL_C + CTRL_C)
    assert chat.gone() == 0


def test_a_benchmark_sums_up_and_leaves(chat: Terminal) -> None:
    chat.until("● scripted")
    chat.type("/bench 2" + ENTER)
    shown = chat.until("2 of 2 replies are plain decoding's")
    assert "× plain" in shown
    chat.type(ESCAPE)
    chat.until("Say something")
    chat.type(CTRL_C + CTRL_C)
    assert chat.gone() == 0
