"""From start to quit in a real terminal, as a person does it."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.e2e.terminal import FIGURES, Terminal

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("preloaded_app")]

ENTER, ESCAPE, HOME, CTRL_C, CTRL_J, F5 = "\r", "\x1b", "\x1b[H", "\x03", "\n", "\x1b[15~"


@pytest.fixture
def chat(request: pytest.FixtureRequest) -> Iterator[Terminal]:
    columns, rows = getattr(request, "param", (120, 40))
    terminal = Terminal(["--pair", "scripted", "--drafter", "draft_model", "--controller", "fixed"], columns, rows)
    yield terminal
    terminal.close()


def click(column: int, row: int) -> str:
    """What a terminal sends when the left button goes down and up there."""
    return "".join(f"\x1b[<0;{column + 1};{row + 1}{end}" for end in "Mm")


def ready(text: str) -> bool:
    return "● scripted" in text


def drafting(text: str) -> bool:
    return re.search(r"\d+ guess", text) is not None


def finished(text: str) -> bool:
    return re.search(FIGURES, text) is not None


def test_start_ask_watch_stop_change_the_width_ask_again_quit(chat: Terminal) -> None:
    chat.until("Say something")
    chat.until(ready)
    chat.type("hello" + ENTER)
    chat.until(drafting)
    chat.type(ESCAPE)
    stopped = chat.until(lambda text: "stopped" in text or "cancelled" in text)
    assert "hello" in stopped
    chat.type("/set width 4" + ENTER)
    chat.until("width = 4")  # until then the command is in the prompt, and what is typed is added to it
    chat.type("tell me more" + ENTER)
    chat.until(drafting)
    chat.until(lambda text: len(re.findall(FIGURES, text)) == 2)
    chat.type(CTRL_C)
    chat.type(CTRL_C)
    assert chat.gone() == 0


def test_a_reply_is_slowed_down_held_stepped_and_its_tree_is_walked(chat: Terminal) -> None:
    chat.until(ready)
    chat.type("/speed 1" + ENTER)
    chat.until("speed: 1 round/s")
    chat.type("hello" + ENTER)
    chat.until("▸ 1 round/s")
    chat.type("/pause" + ENTER)
    chat.until("‖ held")

    def at_the_root(text: str) -> bool:
        """The tree may still change under the pointer, so click a node and go home until that is told of."""
        if "the last token before this round" in text:
            return True
        lines = text.split("\n")
        row = next((y for y, line in enumerate(lines) if "●" in line[80:]), None)
        if row is None:  # held in a round in which nothing stood
            chat.type("/step" + ENTER)
        else:
            chat.type(click(lines[row].index("●", 80), row) + HOME)
        return False

    chat.until(at_the_root, every_s=1.0)
    chat.type(".")
    chat.until(lambda text: "this token" not in text and "‖ held" in text)
    chat.type(" ")
    chat.until("▸ 1 round/s")
    chat.type(ESCAPE)
    chat.until("stopped")
    chat.until(finished)


def test_without_utf8_the_screen_is_drawn_in_ascii() -> None:
    terminal = Terminal(["--pair", "scripted"], 80, 24, LC_ALL="en_US.ISO-8859-1")
    try:
        assert terminal.until("* scripted").isascii()
        terminal.type("hello" + ENTER)
        assert terminal.until(lambda text: "tok/s" in text and "round" not in text).isascii()
    finally:
        terminal.close()


@pytest.mark.parametrize("chat", [(80, 24), (40, 12)], indirect=True)
def test_a_small_terminal_holds_a_whole_chat(chat: Terminal) -> None:
    chat.until(ready)
    chat.type("hello" + ENTER)
    chat.until(finished)
    chat.type(CTRL_C + CTRL_C)
    assert chat.gone() == 0


def test_a_line_can_be_broken_everywhere(chat: Terminal) -> None:
    chat.until(ready)
    chat.type("first" + CTRL_J + "second" + ENTER)
    chat.until(lambda text: re.search(r"▌ first *.*\n.*▌ second", text) is not None)


def test_a_killed_engine_is_reported_and_the_chat_goes_on(chat: Terminal) -> None:
    chat.until(ready)
    chat.type("hello" + ENTER)
    chat.until(drafting)
    for child in children_of(app_in(chat)):
        os.kill(child, signal.SIGKILL)
    shown = chat.until(lambda text: "F5" in text)
    assert "hello" in shown
    chat.type(F5)
    chat.until(ready)
    chat.type("again" + ENTER)
    chat.until(finished)


def app_in(terminal: Terminal) -> int:
    """The process of the app: with `preloaded_app` it is no child of the terminal's process."""
    return os.tcgetpgrp(terminal.process.child_fd)


def children_of(pid: int) -> list[int]:
    """The processes that any of its threads started."""
    found: list[int] = []
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):  # the thread has ended
            found += map(int, file.read_text().split())
    return found


@pytest.mark.skipif(not os.path.exists("/proc/self/task"), reason="finds the engine through /proc")
def test_the_engine_leaves_with_the_app(chat: Terminal) -> None:
    chat.until(ready)
    engines = children_of(app_in(chat))
    assert engines
    chat.type(CTRL_C + CTRL_C)
    chat.gone()
    assert not any(alive(pid) for pid in engines)


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().split()[2] != "Z"
    except OSError:
        return False


def test_a_recording_plays_without_an_engine(tmp_path) -> None:
    recording = tmp_path / "reply.jsonl"
    writer = Terminal(["run", "hello", "--pair", "scripted", "--max-tokens", "40", "--record", str(recording)])
    try:
        assert writer.gone(60) == 0
    finally:
        writer.close()
    player = Terminal(["replay", str(recording)])
    try:
        player.until("hello")
        player.until(finished)
        assert children_of(app_in(player)) == []
        player.type(CTRL_C + CTRL_C)
        assert player.gone() == 0
    finally:
        player.close()
